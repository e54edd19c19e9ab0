"""Why not another plan: the rule, the user's constraint, the memory or the term, each with its margin."""

import re

import pytest

from tests.unit.recommend.cases import MIXTRAL, Raw, llama, recommendation
from tools.recommend.optimize import workload_of
from tools.recommend.report import PlanFields, PlanValue, RejectedPlan
from tools.recommend.why_not import explain_plan, find_changed
from tools.recommend.workload import Workload
from tools.scenario import Plan, parse_scenario

LIMIT_GIB = 0.92 * 79.1
WORKLOADS: dict[str, Raw] = {
    "llama": llama(),
    "mixtral": MIXTRAL,
    "fixed": llama(constraints={"tp": 4}),
    "few-changes": llama(constraints={"max_changes": 1}),
}
EVERY = pytest.mark.parametrize("raw", WORKLOADS.values(), ids=WORKLOADS.keys())


def changed(workload: Workload, plan: Plan, update: PlanFields) -> Plan:
    found = find_changed(workload, plan, update)
    assert found is not None
    return found


def asked(raw: Raw, **update: PlanValue) -> tuple[RejectedPlan, Workload]:
    workload = workload_of(parse_scenario(raw, need_plan=False))
    winner = recommendation(raw).proposals[0].plan
    plan = changed(workload, winner, update)
    return explain_plan(workload, plan, winner), workload


@EVERY
def test_rejected_plans_each_have_a_binding_constraint_with_its_margin(raw: Raw) -> None:
    best = recommendation(raw).proposals[0].prediction.step_time_s
    entries = recommendation(raw).rejected
    assert 1 <= len(entries) <= 6
    for one in entries:
        assert one.step_time_s is not None
        assert one.peak_memory_gib is not None
        ratio = one.step_time_s / best
        assert one.step_time_ratio == pytest.approx(ratio)
        pace = f"save {1 - ratio:.1%}" if ratio < 1 else f"cost {ratio - 1:.1%} more"
        assert f"would {pace}" in one.why
        if one.binding == "memory":
            assert f"needs {one.peak_memory_gib:.1f} GiB of {LIMIT_GIB:.1f} usable" in one.why
            assert one.peak_memory_gib > LIMIT_GIB
        elif one.binding == "time":
            assert ratio > 1
            assert one.peak_memory_gib <= LIMIT_GIB
        elif one.binding == "constraint":
            assert "constraints." in one.why
        else:
            assert one.binding == "preference"
            assert ratio <= 1


@EVERY
def test_rejected_plans_are_legal_not_proposed_and_the_fastest_come_first(raw: Raw) -> None:
    workload = workload_of(parse_scenario(raw, need_plan=False))
    entries, winner = recommendation(raw).rejected, recommendation(raw).proposals[0].plan
    assert all(workload.refusal(one.plan) is None for one in entries)
    assert all(one.plan != winner for one in entries)
    ratios = [one.step_time_ratio or 0.0 for one in entries]
    assert ratios == sorted(ratios)


def test_what_the_user_forbade_binds_before_memory_and_time() -> None:
    answer, _ = asked(WORKLOADS["fixed"], tp=2)
    assert answer.binding == "constraint"
    assert "constraints.tp allows 4 only" in answer.why
    answer, _ = asked(llama(constraints={"tp": {"not": [2], "max": 4}}), tp=2)
    assert answer.binding == "constraint"
    assert "constraints.tp says: not 2, at most 4" in answer.why


def test_too_many_changes_bind() -> None:
    answer, _ = asked(WORKLOADS["few-changes"], tp=2, pp=1, zero_stage=3)
    assert answer.binding == "constraint"
    assert re.search(r"changes [2-9] fields and constraints.max_changes is 1", answer.why)


def test_an_illegal_plan_is_told_the_framework_s_reason() -> None:
    answer, workload = asked(llama(), vpp=7)
    assert answer.binding == "rule"
    assert answer.why == workload.refusal(answer.plan)
    assert answer.why.startswith("plan.vpp: got 7; ")


def test_a_plan_that_does_not_fit_is_told_gibibytes() -> None:
    answer, workload = asked(llama(), tp=1, pp=1, zero_stage=0)
    needs = workload.predict([answer.plan])[0].peak_memory_gib
    assert answer.binding == "memory"
    assert f"needs {needs:.1f} GiB of {workload.limit_gib:.1f} usable" in answer.why


def test_a_slower_plan_is_told_the_term_that_grows() -> None:
    answer, workload = asked(llama(), tp=8, pp=1)
    best = recommendation(llama()).proposals[0].prediction.breakdown_s["tp_comm_exposed"]
    slow = workload.predict([answer.plan])[0].breakdown_s["tp_comm_exposed"]
    assert answer.binding == "time"
    assert f"exposed tensor-parallel communication ({best:.3g} to {slow:.3g} s)" in answer.why


def test_the_winner_itself_is_told_so() -> None:
    winner = recommendation(llama()).proposals[0].plan
    answer, _ = asked(llama(), tp=winner.tp)
    assert (answer.binding, answer.step_time_ratio) == ("none", 1.0)


def test_what_is_asked_for_stays_and_the_rest_follows() -> None:
    workload = workload_of(parse_scenario(llama()))
    plan = workload.scenario.plan
    assert plan is not None
    one = changed(workload, plan, {"pp": 1})
    assert (one.pp, one.vpp, one.dp, one.dp_shard, one.schedule) == (1, 1, 8, 8, "1f1b")
    two = changed(workload, plan, {"tp": 4, "sequence_parallel": False})
    assert (two.tp, two.sequence_parallel, two.dp) == (4, False, 4)
    none = changed(workload, plan, {"zero_stage": 0})
    assert (none.zero_stage, none.dp_shard) == (0, 1)
    back = changed(workload, none, {"zero_stage": 3})
    assert (back.zero_stage, back.dp_shard) == (3, 2)
    assert changed(workload, plan, {"tp": 1}).sequence_parallel is False
    assert find_changed(workload, plan, {"tp": 3}) is None


def test_a_neighbour_beyond_the_bounds_of_a_field_is_no_plan() -> None:
    workload = workload_of(parse_scenario(llama()))
    assert workload.scenario.plan is not None
    assert find_changed(workload, workload.scenario.plan, {"micro_batch_size": 2 * 10**9}) is None
