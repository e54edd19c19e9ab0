"""What earlier trials forbid: the search and whoever suggests a plan obey alike."""

from typing import Any

import pytest

from tests.unit.graph.cases import small
from tools.errors import InfeasibleError
from tools.recommend.optimize import best_plans, workload_of
from tools.scenario import Plan, parse_scenario
from tools.search.search import Search
from tools.search.space import decode_row
from tools.trials.steering import PROGRAM_FIELDS, default_plan, is_settled, steered, with_recompute

WORKLOAD = workload_of(parse_scenario(small()))
Data = dict[str, Any]


def best() -> Data:
    return best_plans(WORKLOAD)[0][0].model_dump()


def trial(plan: Data, kind: str | None = None, **more: object) -> Data:
    return {"plan": plan, "failure": {"kind": kind} if kind else None, "refusals": [], **more}


def plans_of(trials: list[Data]) -> list[Data]:
    workload = steered(WORKLOAD, trials)
    found = Search(workload.scenario, workload.constraints, workload.calibration).run().best
    return [decode_row(found.plans, row) for row in range(len(found.step_time_s))]


def test_a_measured_plan_is_left_out_and_nothing_else() -> None:
    everything, rest = plans_of([]), plans_of([trial(best())])
    assert best() in everything
    assert best() not in rest
    assert [plan for plan in everything if plan not in rest] == [best()]


@pytest.mark.parametrize("kind", ["hang", "numerics", "communication_timeout", "bad_configuration"])
def test_a_program_that_failed_is_not_run_in_another_size(kind: str) -> None:
    failed = best()
    rest = plans_of([trial(failed, kind)])
    assert rest
    assert not any(all(plan[name] == failed[name] for name in PROGRAM_FIELDS) for plan in rest)


def test_losses_apart_count_like_a_program_that_failed() -> None:
    failed = best()
    rest = plans_of([trial(failed, refusals=[{"entry": "losses"}])])
    assert not any(all(plan[name] == failed[name] for name in PROGRAM_FIELDS) for plan in rest)


def test_other_nodes_are_no_fault_of_the_program() -> None:
    failed = best()
    rest = plans_of([trial(failed, refusals=[{"entry": "nodes"}])])
    assert any(all(plan[name] == failed[name] for name in PROGRAM_FIELDS) for plan in rest)


def test_memory_that_ran_out_bounds_the_next_plans() -> None:
    failed = best()
    needed = WORKLOAD.predict([Plan.model_validate(failed)])[0].peak_memory_gib
    rest = [Plan.model_validate(plan) for plan in plans_of([trial(failed, "out_of_memory")])]
    assert all(one.peak_memory_gib < needed for one in WORKLOAD.predict(rest[:50]))


def test_whoever_suggests_a_settled_plan_is_told() -> None:
    workload = steered(WORKLOAD, [trial(best())])
    assert is_settled(best(), workload)
    assert not is_settled({**best(), "recompute": "full"}, workload)


def test_sharding_over_one_rank_is_no_sharding() -> None:
    plan = {**best(), "zero_stage": 1, "dp_shard": 1}
    assert is_settled({**plan, "zero_stage": 0}, steered(WORKLOAD, [trial(plan)]))


def test_the_default_plan_is_data_parallel_with_the_frameworks_sharding() -> None:
    megatron = default_plan(WORKLOAD)
    assert (megatron.tp, megatron.pp, megatron.dp, megatron.zero_stage) == (1, 1, 8, 1)
    training = {**small()["training"], "framework": "torch-fsdp2"}
    fsdp = default_plan(workload_of(parse_scenario(small(training=training))))
    assert (fsdp.dp, fsdp.dp_shard, fsdp.zero_stage) == (8, 8, 3)


def test_the_default_plan_keeps_to_constraints_and_memory() -> None:
    fixed = default_plan(workload_of(parse_scenario(small(constraints={"tp": 4}))))
    assert (fixed.tp, fixed.dp) == (4, 2)
    with pytest.raises(InfeasibleError, match="give a plan"):
        default_plan(workload_of(parse_scenario(small(constraints={"tp": 1, "pp": 1, "dp": 4}))))


def test_a_batch_that_cannot_be_split_so_far_is_split_over_tensor_ranks() -> None:
    training = {**small()["training"], "global_batch_size": 4}
    plan = default_plan(workload_of(parse_scenario(small(training=training, plan=None), need_plan=False)))
    assert plan.dp <= 4
    assert plan.tp * plan.pp * plan.dp == 8


def test_recomputation_that_is_not_stated_is_the_least_that_fits() -> None:
    open_plan = Plan.model_validate({**best(), "recompute": None})
    assert with_recompute(WORKLOAD, open_plan).recompute == "none"
    assert with_recompute(WORKLOAD, open_plan.model_copy(update={"recompute": "full"})).recompute == "full"
