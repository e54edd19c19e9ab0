"""What earlier trials forbid: the search and whoever suggests a plan obey alike."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from tests.unit.graph.cases import small
from tools.errors import InfeasibleError
from tools.recommend.optimize import best_plans, workload_of
from tools.scenario import Plan, parse_scenario
from tools.search.search import Search
from tools.search.space import decode_row
from tools.trials.gate import Refusal
from tools.trials.order import TrialFailure
from tools.trials.steering import PROGRAM_FIELDS, default_plan, is_settled, steered, with_recompute

WORKLOAD = workload_of(parse_scenario(small()))


@dataclass(frozen=True)
class Ended:
    plan: Plan
    failure: TrialFailure | None = None
    refusals: tuple[Refusal, ...] = ()


@cache
def best() -> Plan:
    return best_plans(WORKLOAD)[0][0]


def failed_as(kind: str) -> Ended:
    return Ended(best(), TrialFailure(kind=kind, confidence=0.9, evidence=[]))


def refused_for(entry: str) -> Ended:
    return Ended(best(), refusals=(Refusal(entry=entry, baseline="1", trial="2", says="differ"),))


def plans_of(*trials: Ended) -> list[Plan]:
    workload = steered(WORKLOAD, trials)
    ranked = Search(workload.scenario, workload.constraints, workload.calibration).run().best
    return [Plan.model_validate(decode_row(ranked.plans, row)) for row in range(len(ranked.step_time_s))]


def has_same_program(plans: list[Plan]) -> bool:
    program = best().model_dump(include=set(PROGRAM_FIELDS))
    return any(plan.model_dump(include=set(PROGRAM_FIELDS)) == program for plan in plans)


def test_a_measured_plan_is_left_out_and_nothing_else() -> None:
    everything, rest = plans_of(), plans_of(Ended(best()))
    assert best() in everything
    assert best() not in rest
    assert [plan for plan in everything if plan not in rest] == [best()]


def test_what_the_user_avoids_stays_out_after_trials() -> None:
    workload = workload_of(parse_scenario(small(constraints={"avoid": [{"tp": best().tp, "pp": best().pp}]})))
    excluded = steered(workload, [Ended(best())]).constraints.excluded
    assert {"tp": best().tp, "pp": best().pp} in excluded
    assert len(excluded) == 2


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


def test_a_settled_plan_is_known_to_whoever_suggests_it_and_sharding_over_one_rank_is_none() -> None:
    workload = steered(WORKLOAD, [Ended(best())])
    assert is_settled(best(), workload)
    assert not is_settled(best().model_copy(update={"recompute": "full"}), workload)
    plan = best().model_copy(update={"zero_stage": 1, "dp_shard": 1})
    assert is_settled(plan.model_copy(update={"zero_stage": 0}), steered(WORKLOAD, [Ended(plan)]))


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


def test_without_a_default_that_fits_a_plan_must_be_stated() -> None:
    with pytest.raises(InfeasibleError, match="give a plan"):
        default_plan(workload_of(parse_scenario(small(constraints={"tp": 1, "pp": 1, "dp": 4}))))


def test_recomputation_that_is_not_stated_is_the_least_that_fits() -> None:
    open_plan = best().model_copy(update={"recompute": None})
    assert with_recompute(WORKLOAD, open_plan).recompute == "none"
    assert with_recompute(WORKLOAD, open_plan.model_copy(update={"recompute": "full"})).recompute == "full"
