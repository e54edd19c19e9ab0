"""Recomputation as a dial: as little as costs least, at the cost that a prediction of the plan has."""

import numpy as np
import pytest

from tests.unit.recommend.cases import MIXTRAL, in_framework, llama, workload_for
from tools.physics.memory import GIB
from tools.recommend.choose import expected_cost
from tools.recommend.dial import with_dial
from tools.recommend.workload import Workload, why_inexpressible
from tools.search.ranked import Ranked
from tools.search.search import Search

LONG = in_framework(llama(), "megatron-core", seq_len=32768, global_batch_size=64)
MOE = in_framework(MIXTRAL, "megatron-core", seq_len=16384, global_batch_size=64)


def dialled(raw: dict[str, object]) -> tuple[Workload, Ranked, Ranked]:
    """The workload, what the search found, and the rows that the dial added."""
    workload = workload_for(raw)
    found = Search(workload.scenario, workload.constraints).run().best
    both = with_dial(workload, found)
    return workload, found, both.take(np.arange(len(found.step_time_s), len(both.step_time_s)))


CASES = {"dense": dialled(LONG), "experts": dialled(MOE)}
BOTH = pytest.mark.parametrize(("workload", "found", "added"), CASES.values(), ids=CASES.keys())


@BOTH
def test_what_is_added_costs_what_a_prediction_of_the_plan_says(
    workload: Workload, found: Ranked, added: Ranked
) -> None:
    rows = np.linspace(0, len(added.step_time_s) - 1, 40).astype(int)
    plans = [added.plans.plan(int(row)) for row in rows]
    predictions = workload.predict(plans)
    assert [p.step_time_s for p in predictions] == pytest.approx(added.step_time_s[rows].tolist(), rel=1e-9)
    memory = [p.peak_memory_gib for p in predictions]
    assert memory == pytest.approx((added.memory_bytes[rows] / GIB).tolist(), rel=1e-9)
    assert all(workload.refusal(plan) is None for plan in plans)
    assert all(why_inexpressible(workload.scenario, plan) is None for plan in plans)


@BOTH
def test_it_fits_and_is_sooner_done_than_recomputing_every_layer(
    workload: Workload, found: Ranked, added: Ranked
) -> None:
    full = {
        found.plans.plan(row): float(cost)
        for row, cost in enumerate(expected_cost(workload, found))
        if found.plans["recompute"][row] == 2
    }
    assert np.all(added.memory_bytes <= workload.limit_gib * GIB)
    for row, cost in enumerate(expected_cost(workload, added)):
        less = added.plans.plan(row)
        whole = less.model_copy(
            update={"recompute": "full", "recompute_layers": None, "recompute_modules": None}
        )
        assert cost < full[whole]
