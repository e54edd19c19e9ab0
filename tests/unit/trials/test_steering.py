"""What earlier trials forbid: the search and whoever suggests a plan obey alike. When to stop."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from tests.unit.graph.cases import small
from tools.recommend.optimize import best_plans, workload_of
from tools.scenario import Plan, parse_scenario
from tools.search.search import Search
from tools.trials.gain import MIN_GAIN, TrialBudget, judge
from tools.trials.gate import PairedRatio, Refusal
from tools.trials.order import TrialFailure
from tools.trials.steering import PROGRAM_FIELDS, default_plan, steered, with_recompute

WORKLOAD = workload_of(parse_scenario(small()))
PLENTY = TrialBudget(device_hours=10, trials=8)


@dataclass(frozen=True)
class Ended:
    plan: Plan
    paired: PairedRatio | None = None
    steps: int | None = None
    seconds: float = 1.0
    failure: TrialFailure | None = None
    refusals: tuple[Refusal, ...] = ()
    key: str = "t"
    status: str = "measured"
    step_time_s: float | None = None
    uncertainty: float | None = None
    peak_memory_bytes: int | None = None
    terms: dict[str, float] | None = None


@cache
def best() -> Plan:
    return best_plans(WORKLOAD)[0][0]


def failed_as(kind: str) -> Ended:
    return Ended(best(), failure=TrialFailure(kind=kind, confidence=0.9, evidence=[]))


def refused_for(entry: str) -> Ended:
    return Ended(best(), refusals=(Refusal(entry=entry, baseline="1", trial="2", reason="differ"),))


def plans_of(*trials: Ended) -> list[Plan]:
    workload = steered(WORKLOAD, trials)
    ranked = Search(workload.scenario, workload.constraints, workload.calibration).run().best
    return [ranked.plans.plan(row) for row in range(len(ranked.step_time_s))]


def has_same_program(plans: list[Plan]) -> bool:
    program = best().model_dump(include=set(PROGRAM_FIELDS))
    return any(plan.model_dump(include=set(PROGRAM_FIELDS)) == program for plan in plans)


FAULTS = ["hang", "numerics", "communication_timeout", "bad_configuration"]


@pytest.mark.parametrize(
    ("ended", "runs_again"),
    [
        *((failed_as(kind), False) for kind in FAULTS),
        (refused_for("losses"), False),
        (refused_for("nodes"), True),
    ],
    ids=[*FAULTS, "losses apart", "other nodes"],
)
def test_a_program_that_failed_is_not_run_in_another_size(ended: Ended, runs_again: bool) -> None:
    rest = plans_of(ended)
    assert rest
    assert has_same_program(rest) is runs_again


def test_memory_that_ran_out_bounds_the_next_plans() -> None:
    needed = WORKLOAD.predict([best()])[0].peak_memory_gib
    rest = plans_of(failed_as("out_of_memory"))
    assert any(p.peak_memory_gib >= needed for p in WORKLOAD.predict(plans_of()[:50]))
    assert rest
    assert all(p.peak_memory_gib < needed for p in WORKLOAD.predict(rest[:50]))


@pytest.mark.parametrize(
    ("training", "changes", "expected"),
    [
        ({}, {}, {"tp": 1, "pp": 1, "dp": 8, "zero_stage": 1}),
        ({"framework": "torch-fsdp2"}, {}, {"dp": 8, "dp_shard": 8, "zero_stage": 3}),
        ({}, {"constraints": {"tp": 4}}, {"tp": 4, "dp": 2}),
        ({"global_batch_size": 4}, {}, {"tp": 2, "pp": 1, "dp": 4}),  # what cannot be split so far
    ],
)
def test_the_default_plan_is_data_parallel_with_the_frameworks_sharding_within_constraints(
    training: dict[str, Any], changes: dict[str, Any], expected: dict[str, int]
) -> None:
    raw = small(training={**small()["training"], **training}, plan=None, **changes)
    plan = default_plan(workload_of(parse_scenario(raw, need_plan=False)))
    assert plan.model_dump(include=set(expected)) == expected


def test_recomputation_that_is_not_stated_is_the_least_that_fits() -> None:
    open_plan = best().model_copy(update={"recompute": None})
    assert with_recompute(WORKLOAD, open_plan).recompute == "none"
    assert with_recompute(WORKLOAD, open_plan.model_copy(update={"recompute": "full"})).recompute == "full"


@pytest.mark.parametrize(
    ("noise", "gains", "stop"),
    [
        (0.01, [0.2], False),
        (0.01, [0.0001], True),
        (0.01, [0.05], False),
        (5.0, [0.05], False),
        (0.01, [0.0, 0.2], False),
        (0.01, [], True),
    ],
    ids=["surely faster", "surely slower", "small", "under noise", "most promising", "none left"],
)
def test_a_trial_is_worth_it_if_its_gain_would_show(noise: float, gains: list[float], stop: bool) -> None:
    judged = judge(gains, noise, PLENTY)
    assert judged.stop is stop
    if stop:
        assert (judged.expected_gain or 0.0) < MIN_GAIN


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (TrialBudget(10, 8, 1.0, 8), "8 trials"),
        (TrialBudget(10, 8, 10.0, 3), "10 device-hours"),
        (TrialBudget(0, 8), "0 device-hours"),
    ],
)
def test_a_spent_budget_stops_and_says_what_is_left_undone(budget: TrialBudget, says: str) -> None:
    judged = judge([0.5], 0.01, budget)
    assert judged.stop
    assert says in judged.reason
    assert judged.expected_gain is not None
