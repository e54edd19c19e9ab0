"""The search finds what pricing every legal plan finds: the fastest that fits, and the front.

Below, what it relies on in the cost model, for every legal plan; and how many fields may change.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.search.scenes import (
    BOTH_MODELS,
    EVERY_FRAMEWORK,
    FIELDS,
    columns,
    counted,
    fitting_limit_bytes,
    priced,
    scenario,
    todays,
)
from tools.model.predict import predict, predict_rows
from tools.physics.encode import encode_plans
from tools.physics.step import before_sharding_s, pace_of, step_core
from tools.scenario import Plan, PlanColumns, PlanFacts, Scenario, legal_mask
from tools.scenario.columns import decode_value
from tools.search.constraints import Constraints, Limit, parse_constraints
from tools.search.ranked import front_bytes
from tools.search.search import Search, SearchOutcome, count_changes

GIB = 2.0**30
ROUNDING = 1.0 + 1e-9
DEVICES = ("h100-sxm-80gb", "a100-sxm-40gb", "tpu-v5e")
SEQUENCES = (256, 2048, 16384)
Plans = NDArray[np.int64]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios as small as these would be one block, in which no bound could close anything."""
    monkeypatch.setattr("tools.search.search.CORES_PER_BLOCK", 1)


def search(s: Scenario, constraints: Constraints | None = None, kept: int = 4096) -> SearchOutcome:
    """Every legal plan, whatever people usually run."""
    return Search(s, replace(constraints or Constraints(), space="all"), kept=kept).run()


def column(rows: Plans, name: str) -> Plans:
    return rows[:, FIELDS.index(name)]


def with_column(rows: Plans, name: str, value: int) -> Plans:
    changed = rows.copy()
    changed[:, FIELDS.index(name)] = value
    return changed


@EVERY_FRAMEWORK
@BOTH_MODELS
@settings(max_examples=5)
@given(
    device=st.sampled_from(DEVICES),
    seq_len=st.sampled_from(SEQUENCES),
    share_that_fits=st.sampled_from([0.001, 0.02, 0.3, 1.0]),
    kept=st.sampled_from([1, 7, 200, 4096]),
)
def test_winner_and_front_are_those_of_all_legal_plans_that_fit(
    framework: str, moe: bool, device: str, seq_len: int, share_that_fits: float, kept: int
) -> None:
    """However few plans are kept, so that more branches close early."""
    rows = counted(framework, moe)
    wide = priced(scenario(framework, moe, device=device, seq_len=seq_len), rows).memory_bytes
    memory_gib = float(np.quantile(wide, share_that_fits)) * 1.001 / 0.92 / GIB
    s = scenario(framework, moe, device=device, seq_len=seq_len, memory_gib=memory_gib)
    costs = priced(s, rows)
    fits = costs.memory_bytes <= fitting_limit_bytes(s)
    assert np.any(fits)
    result = search(s, kept=kept)
    assert result.best.step_time_s[0] == pytest.approx(np.min(costs.step_time_s[fits]), rel=1e-9)
    assert np.all(np.diff(result.front.step_time_s) > 0)
    assert np.all(np.diff(result.front.memory_bytes) < 0)
    as_fast = front_bytes(result.front, costs.step_time_s[fits] * ROUNDING)
    assert np.all(as_fast <= costs.memory_bytes[fits] * ROUNDING)
    for ranked in (result.best, result.front):
        assert np.all(ranked.memory_bytes <= fitting_limit_bytes(s))
        assert np.all(legal_mask(PlanFacts(s.model, s.cluster, s.training, ranked.plans)))


@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan"])
def test_keeping_fewer_plans_times_fewer_and_loses_none_of_the_best(framework: str) -> None:
    s = scenario(framework, memory_gib=3.0)
    everything = search(s, kept=10**9)
    for kept in (1, 7, 200):
        few = search(s, kept=kept)
        assert few.best.step_time_s[:kept] == pytest.approx(everything.best.step_time_s[:kept], rel=1e-12)
        assert few.searched == everything.searched
        assert few.timed < everything.timed


@EVERY_FRAMEWORK
def test_decided_plans_are_all_legal_ones_but_those_that_sequence_parallelism_replaces(
    framework: str,
) -> None:
    rows = counted(framework, True)
    split = column(rows, "sequence_parallel") == 1
    degrees = np.stack([column(rows, name) for name in ("tp", "pp", "cp")], axis=1)
    replaced = {tuple(key) for key in degrees[split].tolist()}
    kept = [bool(on) or tuple(key) not in replaced for on, key in zip(split, degrees.tolist(), strict=True)]
    assert search(scenario(framework)).searched == sum(kept)


@EVERY_FRAMEWORK
def test_times_and_memory_are_those_of_a_prediction_of_the_same_plan(framework: str) -> None:
    s = scenario(framework, memory_gib=3.0)
    best = search(s).best
    rows = range(0, len(best.step_time_s), max(1, len(best.step_time_s) // 50))
    plans = [best.plans.plan(row) for row in rows]
    predictions = predict([s.model_copy(update={"plan": plan}) for plan in plans])
    assert [p.step_time_s for p in predictions] == pytest.approx(best.step_time_s[rows], rel=1e-9)
    memory = [p.peak_memory_gib * GIB for p in predictions]
    assert memory == pytest.approx(best.memory_bytes[rows], rel=1e-9)
    assert all(p.fits for p in predictions)


@pytest.mark.parametrize(
    "stated",
    [
        {"tp": 2},
        {"recompute": "full"},
        {"recompute": ["selective", "full"], "pp": [1, 2]},
        {"zero_stage": 0},
        {"tp": {"min": 2, "max": 4}, "pp": {"not": [1]}},
        {"recompute": {"not": ["none"]}, "micro_batch_size": {"max": 2}, "zero_stage": {"max": 2}},
        {"schedule": {"not": ["1f1b"]}, "pp": {"min": 2}, "sequence_parallel": {"not": [True]}},
    ],
    ids=str,
)
def test_the_winner_under_constraints_is_the_fastest_that_obeys_them(stated: dict[str, Any]) -> None:
    s, rows = scenario("torchtitan", memory_gib=3.5), counted("torchtitan", True)
    wanted, costs = parse_constraints(stated, None), priced(s, rows)
    eligible = costs.memory_bytes <= fitting_limit_bytes(s)
    for name in wanted.fields:
        codes = column(rows, name).tolist()
        eligible &= np.array([wanted.permits(name, decode_value(name, code)) for code in codes])
    best = search(s, wanted).best
    assert best.step_time_s[0] == pytest.approx(np.min(costs.step_time_s[eligible]), rel=1e-9)
    for row in range(len(best.step_time_s)):
        plan = best.plans.plan(row).model_dump()
        assert all(wanted.permits(name, plan[name]) for name in stated)


@pytest.mark.parametrize(
    "constraints",
    [
        parse_constraints({"tp": 3}, None),
        Constraints(limits={"recompute": Limit(excluded=("none", "selective", "full"))}),
    ],
    ids=["no such degree", "no recomputation left"],
)
def test_what_leaves_no_plan_finds_nothing(constraints: Constraints) -> None:
    result = search(scenario("megatron-core"), constraints)
    assert (len(result.best.step_time_s), len(result.front.step_time_s), result.searched) == (0, 0, 0)


def before_data_parallelism_s(s: Scenario, rows: Plans) -> NDArray[np.float64]:
    x, _ = encode_plans(s, columns(rows))
    coefficients = Search(s, Constraints()).coefficients
    return before_sharding_s(x, coefficients, pace_of(x, step_core(x, coefficients)))


@EVERY_FRAMEWORK
@BOTH_MODELS
@pytest.mark.parametrize(("device", "seq_len"), [*zip(DEVICES, SEQUENCES, strict=True)])
def test_the_search_may_rely_on_these_facts_of_every_plan(
    framework: str, moe: bool, device: str, seq_len: int
) -> None:
    s, rows = scenario(framework, moe, device=device, seq_len=seq_len), counted(framework, moe)
    unsharded = with_column(with_column(rows, "zero_stage", 1), "dp_shard", 1)
    none, selective, full = (
        before_data_parallelism_s(s, with_column(unsharded, "recompute", code)) for code in (0, 1, 2)
    )
    batch = predict_rows(*encode_plans(s, columns(rows)), [s.training.precision])
    by_formulas_s = batch.costs.step_time_s / np.exp(batch.log_factor)  # what runs say comes after the bounds
    assert np.all(none <= by_formulas_s * ROUNDING), "no sharding is faster than no traffic"
    assert np.all(none <= selective * ROUNDING), "recomputation never shortens the step"
    assert np.all(selective <= full * ROUNDING), "recomputation never shortens the step"
    tensor = rows[column(rows, "tp") > 1]
    off, on = (with_column(tensor, "sequence_parallel", flag) for flag in (0, 1))
    saved = priced(s, on).memory_bytes <= priced(s, off).memory_bytes * ROUNDING
    assert np.all(saved), "sequence parallelism never needs more memory"
    faster = before_data_parallelism_s(s, on) <= before_data_parallelism_s(s, off) * ROUNDING
    assert np.all(faster), "sequence parallelism is never slower before data parallelism"


DEGREES: dict[str, Any] = dict.fromkeys(
    ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "micro_batch_size"), 1
)


def with_today(row: int) -> tuple[Scenario, Plan]:
    plan = todays(row)
    return scenario("torchtitan", memory_gib=80.0).model_copy(update={"plan": plan}), plan


@pytest.mark.parametrize("row", [5, 1300, 2600, 4100, 5900])
def test_no_change_leaves_todays_plan_whatever_its_recomputation_and_sequence_parallelism(row: int) -> None:
    s, today = with_today(row)
    best = search(s, Constraints(max_changes=0)).best
    plans = [best.plans.plan(i).model_dump() for i in range(len(best.step_time_s))]
    assert today.model_dump() in plans
    following = {"dp", "dp_shard", "schedule"}
    fixed = today.model_dump(exclude=following)
    assert all({name: plan[name] for name in fixed} == fixed for plan in plans)
    assert best.step_time_s[0] <= predict([s])[0].step_time_s * ROUNDING


@pytest.mark.parametrize(
    ("update", "changes"),
    [
        ({}, 0),
        ({"tp": 1, "dp": 4, "dp_shard": 4}, 1),
        ({"tp": 1, "dp": 4, "dp_shard": 2}, 1),
        ({"tp": 1, "dp": 8, "dp_shard": 4, "pp": 1}, 3),
        ({"vpp": 2, "schedule": "interleaved"}, 1),
        ({"recompute": "full", "sequence_parallel": False, "zero_stage": 3}, 3),
    ],
)
def test_degrees_that_follow_from_others_are_not_counted_as_changes(
    update: dict[str, Any], changes: int
) -> None:
    plan = DEGREES | {"tp": 2, "pp": 2, "dp": 2, "dp_shard": 2, "zero_stage": 1, "sequence_parallel": True}
    plan |= {"recompute": "none", "schedule": "1f1b"}
    today, changed = (Plan.model_validate({**plan, **fields}) for fields in ({}, update))
    assert count_changes(today, PlanColumns.of([changed])).tolist() == [changes]
