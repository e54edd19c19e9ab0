"""The facts of the cost model that the search relies on, on plans drawn from all legal ones."""

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.search.scenes import FIELDS, FRAMEWORKS, counted, listed, priced, scenario
from tools.cost.encode import encode_plans
from tools.cost.predict import Costs
from tools.cost.step import step_core, with_data_parallelism
from tools.scenario import Plan, Scenario, columns_of
from tools.search.constraints import Constraints
from tools.search.search import Search
from tools.search.space import table_of

ROUNDING = 1.0 + 1e-9


@st.composite
def cases(draw: st.DrawFn) -> tuple[Scenario, Plan]:
    framework, moe = draw(st.sampled_from(FRAMEWORKS)), draw(st.booleans())
    rows = counted(framework, moe)
    row = draw(st.integers(0, len(rows) - 1))
    device = draw(st.sampled_from(["h100-sxm-80gb", "a100-sxm-40gb", "tpu-v5e"]))
    s = scenario(framework, moe, device=device, seq_len=draw(st.sampled_from([256, 2048, 16384])))
    return s, listed(rows[row : row + 1])[0]


def cost(s: Scenario, plan: Plan) -> Costs:
    table = table_of([plan])
    return priced(s, np.stack([table[name] for name in FIELDS], axis=1))


@settings(max_examples=300)
@given(case=cases())
def test_the_search_s_memory_bound_is_below_the_memory_of_every_plan(case: tuple[Scenario, Plan]) -> None:
    s, plan = case
    search = Search(s, Constraints())
    table = table_of([plan])
    bound = search._min_bytes(table, int(table["recompute"][0]))
    assert bound[0] <= cost(s, plan).memory_bytes[0]


@settings(max_examples=300)
@given(case=cases())
def test_the_search_s_time_bound_is_below_the_time_of_every_plan(case: tuple[Scenario, Plan]) -> None:
    s, plan = case
    search = Search(s, Constraints())
    bound = search._evaluated(table_of([plan]), 0, np.zeros(1)).min_s[0]
    assert bound <= cost(s, plan).step_time_s[0] * ROUNDING


@settings(max_examples=300)
@given(case=cases())
def test_recomputation_never_shortens_the_step_before_data_parallelism(case: tuple[Scenario, Plan]) -> None:
    s, plan = case
    search = Search(s, Constraints())
    times = [search._evaluated(table_of([plan]), code, np.zeros(1)).min_s[0] for code in (0, 1, 2)]
    assert times[0] <= times[1] * ROUNDING
    assert times[1] <= times[2] * ROUNDING


@settings(max_examples=300)
@given(case=cases())
def test_sequence_parallelism_never_needs_more_memory(case: tuple[Scenario, Plan]) -> None:
    s, plan = case
    on, off = (cost(s, plan.model_copy(update={"sequence_parallel": flag})) for flag in (True, False))
    if plan.tp > 1:
        assert on.memory_bytes[0] <= off.memory_bytes[0] * ROUNDING


@settings(max_examples=300)
@given(case=cases())
def test_sequence_parallelism_is_never_slower_before_data_parallelism(case: tuple[Scenario, Plan]) -> None:
    """What its shorter window then uncovers is below."""
    s, plan = case
    if plan.tp == 1:
        return
    on, off = (_before_data(s, plan.model_copy(update={"sequence_parallel": f})) for f in (True, False))
    assert on <= off * ROUNDING


def _before_data(s: Scenario, plan: Plan) -> float:
    x, _ = encode_plans(s, columns_of([plan]))
    search = Search(s, Constraints())
    core = step_core(x, search.coefficients)
    unmoved = replace(core, dense=np.zeros(1), expert=np.zeros(1))
    return float(with_data_parallelism(x, search.coefficients, unmoved).total[0])


HOST_BOUND: dict[str, Any] = {
    "tp": 6, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 2, "dp_shard": 2, "zero_stage": 2,
    "micro_batch_size": 3, "recompute": "full", "schedule": "1f1b",
}  # fmt: skip


def test_sequence_parallelism_is_never_slower_where_the_host_sets_the_pace() -> None:
    s = scenario("other", moe=False, seq_len=256)
    on, off = (Plan.model_validate({**HOST_BOUND, "sequence_parallel": flag}) for flag in (True, False))
    assert cost(s, on).step_time_s[0] <= cost(s, off).step_time_s[0] * ROUNDING


ONE_WINDOW_TWICE: dict[str, Any] = {
    "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 12, "dp_shard": 12, "zero_stage": 2,
    "micro_batch_size": 1, "sequence_parallel": False, "schedule": "gpipe",
}  # fmt: skip


def test_recomputation_is_never_faster_with_a_single_micro_batch() -> None:
    s = scenario("maxtext", moe=False, device="a100-sxm-40gb", seq_len=256)
    none, full = (Plan.model_validate({**ONE_WINDOW_TWICE, "recompute": name}) for name in ("none", "full"))
    assert cost(s, none).step_time_s[0] <= cost(s, full).step_time_s[0] * ROUNDING
