"""Why not another plan: the rule, the user's constraint, the memory or the term, each with its margin; and
if nothing fits or is legal: how far off, and what would help, checked by trying it."""

import copy
import re
from dataclasses import replace

import pytest

from tests.unit.recommend.cases import (
    LLAMA_405B,
    MIXTRAL,
    TOO_LARGE,
    Raw,
    in_framework,
    llama,
    plan_of,
    recommendation,
    workload_for,
)
from tools.errors import InfeasibleError
from tools.model.observations import with_seen
from tools.model.predict import predict
from tools.model.runs import Run
from tools.recommend.choose import SAFE
from tools.recommend.optimize import optimize, propose
from tools.recommend.report import PlanFields, RejectedPlan
from tools.recommend.score import support_of
from tools.recommend.why_not import explain_plan, find_changed
from tools.recommend.workload import Workload
from tools.scenario import Plan, parse_scenario
from tools.scenario.spec import PlanValue

LIMIT_GIB = 0.92 * 79.1
WORKLOADS: dict[str, Raw] = {
    "llama": llama(),
    "mixtral": MIXTRAL,
    "fixed": llama(constraints={"tp": 4}),
    "few-changes": llama(constraints={"max_changes": 1}),
}


def changed(workload: Workload, plan: Plan, update: PlanFields) -> Plan:
    neighbour = find_changed(workload, plan, update)
    assert neighbour is not None
    return neighbour


def explained(raw: Raw, **update: PlanValue) -> tuple[RejectedPlan, Workload]:
    """The winner with these fields changed."""
    workload, winner = workload_for(raw), recommendation(raw).proposals[0].plan
    return explain_plan(workload, changed(workload, winner, update), winner), workload


@pytest.mark.parametrize("raw", WORKLOADS.values(), ids=WORKLOADS.keys())
def test_rejected_plans_are_legal_and_each_has_a_binding_constraint_with_its_margin(raw: Raw) -> None:
    entries, winner = recommendation(raw).rejected, recommendation(raw).proposals[0]
    assert 1 <= len(entries) <= 6
    ratios = []
    for entry in entries:
        assert entry.plan != winner.plan
        assert workload_for(raw).refusal(entry.plan) is None
        assert entry.step_time_s is not None
        assert entry.peak_memory_gib is not None
        ratio = entry.step_time_s / winner.prediction.step_time_s
        assert entry.step_time_ratio == pytest.approx(ratio)
        ratios.append(entry.step_time_ratio or 0.0)
        pace = f"save {1 - ratio:.1%}" if ratio < 1 else f"cost {ratio - 1:.1%} more"
        assert f"would {pace}" in entry.why
        if entry.binding == "memory":
            assert f"needs {entry.peak_memory_gib:.1f} GiB of {LIMIT_GIB:.1f} usable" in entry.why
            assert entry.peak_memory_gib > LIMIT_GIB
        elif entry.binding == "time":
            assert ratio > 1
            assert entry.peak_memory_gib <= LIMIT_GIB
        elif entry.binding == "constraint":
            assert "constraints." in entry.why
        else:
            assert entry.binding == "preference"
            assert ratio <= 1
    assert ratios == sorted(ratios)


def test_a_crash_is_named_with_its_run_and_says_little_against_a_third_of_its_memory() -> None:
    workload, first = workload_for(llama()), recommendation(llama()).proposals[0].plan
    crash = Run(scenario=workload.with_plan(first), crashed=True, id="night-7")
    knowing = replace(workload, calibration=with_seen(workload.calibration, [crash]))
    assert knowing.predict([plan_of(llama())])[0].fit_probability >= SAFE
    result = propose(knowing)
    (crashed,) = [entry for entry in result.rejected if entry.plan == first]
    assert crashed.binding == "trial"
    assert "crashed here (crash:night-7)" in crashed.why
    assert any(item.ref == "crash:night-7" for entry in result.proposals for item in entry.evidence)
    assert all(support_of(entry.evidence) == 0 for entry in result.proposals)
    assert result.rejected == sorted(result.rejected, key=lambda entry: entry.step_time_ratio or 0.0)


@pytest.mark.parametrize(
    ("raw", "update", "binding", "why"),
    [
        (WORKLOADS["fixed"], {"tp": 2}, "constraint", "constraints.tp allows 4 only"),
        (
            llama(constraints={"tp": {"not": [2], "max": 4}}),
            {"tp": 2},
            "constraint",
            "constraints.tp says: not 2, at most 4",
        ),
        (
            WORKLOADS["few-changes"],
            {"tp": 2, "pp": 1, "zero_stage": 3},
            "constraint",
            r"changes [2-9] fields and constraints.max_changes is 1",
        ),
        (llama(), {"vpp": 7}, "rule", "plan.vpp: got 7; "),
    ],
)
def test_a_constraint_binds_before_memory_and_time_and_a_rule_before_all(
    raw: Raw, update: dict[str, PlanValue], binding: str, why: str
) -> None:
    answer, workload = explained(raw, **update)
    assert answer.binding == binding
    assert re.search(why, answer.why)
    assert binding != "rule" or answer.why == workload.refusal(answer.plan)


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ([{"pp": 1}], {"pp": 1, "vpp": 1, "dp": 8, "dp_shard": 8, "schedule": "1f1b"}),
        ([{"tp": 4, "sequence_parallel": False}], {"tp": 4, "sequence_parallel": False, "dp": 4}),
        ([{"zero_stage": 0}], {"zero_stage": 0, "dp_shard": 1}),
        ([{"zero_stage": 0}, {"zero_stage": 3}], {"zero_stage": 3, "dp_shard": 2}),
        ([{"tp": 1}], {"sequence_parallel": False}),
    ],
)
def test_what_is_asked_for_stays_and_the_rest_follows(updates: list[PlanFields], expected: Raw) -> None:
    plan = plan_of(llama())
    for update in updates:
        plan = changed(workload_for(llama()), plan, update)
    assert plan.model_dump(include=set(expected)) == expected


def refusal(raw: Raw) -> str:
    with pytest.raises(InfeasibleError) as caught:
        optimize(parse_scenario(raw, need_plan=False))
    return str(caught.value)


def on_devices(raw: Raw, devices: int) -> Raw:
    grown: Raw = copy.deepcopy(raw)
    grown["training"]["global_batch_size"] *= devices // raw["cluster"]["num_devices"]
    grown["cluster"]["num_devices"] = devices
    return grown


def test_405b_on_8_devices_is_answered_with_what_it_lacks_and_how_many_devices_would_do() -> None:
    says = refusal(LLAMA_405B)
    needs, usable = (float(x) for x in re.findall(r"needs ([\d.]+) GiB of ([\d.]+) usable", says)[0])
    assert needs > 405e9 * 16 / 8 / 2**30 > usable
    assert usable == pytest.approx(LIMIT_GIB, abs=0.1)
    devices = int(re.findall(r"(\d+) devices \(with the batch grown alike\) would suffice", says)[0])
    enough = optimize(parse_scenario(on_devices(LLAMA_405B, devices), need_plan=False))
    assert enough.proposals[0].prediction.fits
    assert "no legal plan fits" in refusal(on_devices(LLAMA_405B, devices // 2))
    assert "optimizer state" in says
    small = TOO_LARGE | {"tp": 8, "dp": 1, "sequence_parallel": True, "recompute": "full"}
    other = predict([parse_scenario({**LLAMA_405B, "plan": small})])[0].peak_memory_gib
    assert needs <= other + 0.05, "the smallest plan is really the smallest"


@pytest.mark.parametrize(
    ("raw", "start", "part"),
    [
        (
            llama(constraints={"tp": 1, "pp": 1, "zero_stage": 0}),
            "no legal plan fits: the smallest (",
            "without the constraints on tp, pp, zero_stage plans fit",
        ),
        (
            llama(constraints={"tp": 3}),
            "no plan is legal: megatron-core accepts none for 64 devices, a global batch of 128",
            "and the constraints tp 3",
        ),
        (llama(constraints={"max_memory_fraction": 0.05}), "no legal", f"of {0.05 * 79.1:.1f} usable"),
        (
            llama(plan=TOO_LARGE, constraints={"max_changes": 0}),
            "no legal plan fits",
            "without the constraints on max_changes plans fit",
        ),
        (in_framework(llama(), "torch-fsdp", global_batch_size=1), "no plan is legal: torch-fsdp", ""),
    ],
)
def test_what_leaves_nothing_is_named(raw: Raw, start: str, part: str) -> None:
    says = refusal(raw)
    assert says.startswith(start)
    assert part in says


def test_a_search_for_remedies_can_be_stopped() -> None:
    class StoppedError(Exception):
        pass

    searches = 0

    def stop_after_the_search(done: float) -> None:
        nonlocal searches
        if searches:
            raise StoppedError
        searches += done == 1.0

    with pytest.raises(StoppedError):
        optimize(parse_scenario(LLAMA_405B, need_plan=False), stop_after_the_search)
