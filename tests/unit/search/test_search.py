"""The search finds what pricing every legal plan one by one finds: the fastest that fits, and the front."""

from typing import Any

import numpy as np
import pytest

from tests.unit.search.scenes import (
    FIELDS,
    FRAMEWORKS,
    counted,
    fitting_limit_bytes,
    priced,
    scenario,
)
from tools.cost.predict import predict
from tools.scenario import Facts, Plan, Scenario, legal_mask
from tools.scenario.columns import decode_value
from tools.search.constraints import Constraints, Limit, parse_constraints
from tools.search.search import Found, Search, front_bytes
from tools.search.space import decode_row, to_columns

GIB = 2.0**30
TIGHT_GIB = (2.3, 3.0)
"""Between what the smallest plan of the small models needs and what the largest does."""


def search(s: Scenario, constraints: Constraints | None = None, kept: int = 4096) -> Found:
    return Search(s, constraints or Constraints(), kept=kept).run()


def plans_of(found: Found, rows: range) -> list[Plan]:
    return [Plan.model_validate(decode_row(found.best.plans, row)) for row in rows]


@pytest.mark.parametrize("memory_gib", [*TIGHT_GIB, 80.0])
@pytest.mark.parametrize("moe", [True, False], ids=["moe", "dense"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_winner_is_the_fastest_of_all_legal_plans_that_fit(
    framework: str, moe: bool, memory_gib: float
) -> None:
    s = scenario(framework, moe, memory_gib=memory_gib)
    costs = priced(s, counted(framework, moe))
    fits = costs.memory_bytes <= fitting_limit_bytes(s)
    found = search(s)
    assert np.any(fits)
    assert found.best.step_time_s[0] == pytest.approx(np.min(costs.step_time_s[fits]), rel=1e-9)


@pytest.mark.parametrize("moe", [True, False], ids=["moe", "dense"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_no_legal_plan_is_both_faster_and_smaller_than_the_front(framework: str, moe: bool) -> None:
    s = scenario(framework, moe, memory_gib=3.0)
    costs = priced(s, counted(framework, moe))
    fits = costs.memory_bytes <= fitting_limit_bytes(s)
    found = search(s).front
    assert np.all(np.diff(found.step_time_s) > 0)
    assert np.all(np.diff(found.memory_bytes) < 0)
    as_fast = front_bytes(found, costs.step_time_s[fits] * (1.0 + 1e-9))
    assert np.all(as_fast <= costs.memory_bytes[fits] * (1.0 + 1e-9))


@pytest.mark.parametrize("kept", [1, 7, 200])
@pytest.mark.parametrize("framework", ["megatron-core", "torchtitan"])
def test_keeping_fewer_plans_closes_more_branches_and_loses_none_of_the_best(
    framework: str, kept: int
) -> None:
    s = scenario(framework, memory_gib=3.0)
    everything, few = search(s, kept=10**9), search(s, kept=kept)
    assert few.best.step_time_s[:kept] == pytest.approx(everything.best.step_time_s[:kept], rel=1e-12)
    assert few.front.step_time_s == pytest.approx(everything.front.step_time_s, rel=1e-12)
    assert few.searched == everything.searched
    assert few.timed < everything.timed


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_decided_plans_are_all_legal_ones_but_those_that_sequence_parallelism_replaces(
    framework: str,
) -> None:
    s = scenario(framework)
    rows = counted(framework, True)
    column = {name: rows[:, i] for i, name in enumerate(FIELDS)}
    split = column["sequence_parallel"] == 1
    degrees = np.stack([column[name] for name in ("tp", "pp", "cp")], axis=1)
    replaced = {tuple(key) for key in degrees[split].tolist()}
    kept = [bool(on) or tuple(key) not in replaced for on, key in zip(split, degrees.tolist(), strict=True)]
    assert search(s).searched == sum(kept)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_times_and_memory_are_those_of_a_prediction_of_the_same_plan(framework: str) -> None:
    s = scenario(framework, memory_gib=3.0)
    found = search(s)
    rows = range(0, len(found.best.step_time_s), max(1, len(found.best.step_time_s) // 50))
    predictions = predict([s.model_copy(update={"plan": p}) for p in plans_of(found, rows)])
    assert [p.step_time_s for p in predictions] == pytest.approx(found.best.step_time_s[rows], rel=1e-9)
    memory = [p.peak_memory_gib * GIB for p in predictions]
    assert memory == pytest.approx(found.best.memory_bytes[rows], rel=1e-9)
    assert all(p.fits for p in predictions)


@pytest.mark.parametrize("fraction", [0.7, 0.8, 0.92, 1.0])
def test_nothing_over_the_memory_limit_is_returned(fraction: float) -> None:
    s = scenario("megatron-core", memory_gib=2.9)
    found = search(s, Constraints(max_memory_fraction=fraction))
    limit = fitting_limit_bytes(s, fraction)
    assert len(found.best.step_time_s)
    assert np.all(found.best.memory_bytes <= limit)
    assert np.all(found.front.memory_bytes <= limit)
    assert np.max(found.best.memory_bytes) > 0.95 * limit


def test_a_smaller_share_of_memory_never_finds_a_faster_plan() -> None:
    s = scenario("megatron-core", moe=False, memory_gib=3.0)
    fractions = (0.72, 0.8, 0.9, 1.0)
    best = [search(s, Constraints(max_memory_fraction=f)).best.step_time_s[0] for f in fractions]
    assert best == sorted(best, reverse=True)
    assert best[0] > best[-1]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_all_that_is_returned_is_legal(framework: str) -> None:
    s = scenario(framework, memory_gib=3.0)
    found = search(s)
    for ranked in (found.best, found.front):
        assert np.all(legal_mask(Facts(s.model, s.cluster, s.training, to_columns(ranked.plans))))


@pytest.mark.parametrize(
    "given",
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
def test_the_winner_under_constraints_is_the_fastest_that_obeys_them(given: dict[str, Any]) -> None:
    s = scenario("torchtitan", memory_gib=3.5)
    wanted = parse_constraints(given, None)
    rows = counted("torchtitan", True)
    costs = priced(s, rows)
    eligible = costs.memory_bytes <= fitting_limit_bytes(s)
    for name in wanted.fields:
        codes = rows[:, FIELDS.index(name)].tolist()
        eligible &= np.array([wanted.permits(name, decode_value(name, code)) for code in codes])
    found = search(s, wanted)
    assert found.best.step_time_s[0] == pytest.approx(np.min(costs.step_time_s[eligible]), rel=1e-9)
    for row in range(len(found.best.step_time_s)):
        plan = decode_row(found.best.plans, row)
        assert all(wanted.permits(name, plan[name]) for name in given)


def test_an_impossible_constraint_finds_nothing() -> None:
    found = search(scenario("megatron-core"), parse_constraints({"tp": 3}, None))
    assert (len(found.best.step_time_s), len(found.front.step_time_s), found.searched) == (0, 0, 0)


def test_no_recomputation_left_finds_nothing() -> None:
    limits = {"recompute": Limit(excluded=("none", "selective", "full"))}
    found = search(scenario("megatron-core"), Constraints(limits=limits))
    assert (len(found.best.step_time_s), len(found.front.step_time_s), found.searched) == (0, 0, 0)


def test_memory_too_small_for_any_plan_finds_nothing_but_decides_all() -> None:
    found = search(scenario("megatron-core", memory_gib=0.5))
    assert (len(found.best.step_time_s), found.timed) == (0, 0)
    assert found.searched == search(scenario("megatron-core")).searched


@pytest.mark.parametrize("moe", [True, False], ids=["moe", "dense"])
def test_progress_rises_from_above_zero_to_one(moe: bool) -> None:
    shares: list[float] = []
    Search(scenario("megatron-core", moe), Constraints()).run(shares.append)
    assert 0.0 < shares[0] < 1.0
    assert shares == sorted(set(shares))
    assert shares[-1] == 1.0


def test_the_same_search_gives_the_same_answer_twice() -> None:
    first, second = (search(scenario("other", memory_gib=3.0)) for _ in range(2))
    assert [*first.best.step_time_s] == [*second.best.step_time_s]
    assert decode_row(first.best.plans, 0) == decode_row(second.best.plans, 0)
