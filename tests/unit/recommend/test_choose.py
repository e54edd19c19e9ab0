"""From many plans to three: preference inside the window, prediction beyond it, really different plans."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.recommend.cases import MIXTRAL, llama
from tools.recommend.choose import (
    FAMILY,
    PREFERENCE_WINDOW,
    choose,
    different,
    features,
    preferred_order,
    reluctance,
    shipped_weights,
)
from tools.scenario import Scenario, parse_scenario
from tools.search.constraints import Constraints
from tools.search.search import NOTHING, Ranked, Search

CAPACITY_BYTES = 79.1 * 2**30


def ranked(raw: dict[str, object]) -> tuple[Scenario, Ranked]:
    s = parse_scenario(raw)
    return s, Search(s, Constraints()).run().best


CASES = {"llama": ranked(llama()), "mixtral": ranked(MIXTRAL)}
BOTH = pytest.mark.parametrize(("s", "best"), CASES.values(), ids=CASES.keys())
WEIGHTS = st.fixed_dictionaries({name: st.floats(0.0, 2.0) for name in shipped_weights()})


def test_no_plans_give_no_proposals() -> None:
    assert choose(CASES["llama"][0], NOTHING, CAPACITY_BYTES, shipped_weights()) == []


@BOTH
def test_the_first_is_within_the_window_of_the_fastest(s: Scenario, best: Ranked) -> None:
    order = preferred_order(s, best, CAPACITY_BYTES, shipped_weights())
    assert best.step_time_s[order[0]] <= best.step_time_s.min() * np.exp(PREFERENCE_WINDOW)


@settings(max_examples=40)
@given(name=st.sampled_from(sorted(CASES)), weights=WEIGHTS)
def test_whatever_the_weights_preference_orders_only_inside_the_window(
    name: str, weights: dict[str, float]
) -> None:
    s, best = CASES[name]
    order = preferred_order(s, best, CAPACITY_BYTES, weights)
    times = best.step_time_s[order]
    inside = times <= best.step_time_s.min() * np.exp(PREFERENCE_WINDOW)
    first_beyond = int(np.sum(inside))
    assert sorted(order.tolist()) == list(range(len(times)))
    assert np.all(inside[:first_beyond])
    assert np.all(np.diff(times[first_beyond:]) >= 0)


@BOTH
def test_without_weights_the_order_is_the_prediction_s(s: Scenario, best: Ranked) -> None:
    order = preferred_order(s, best, CAPACITY_BYTES, dict.fromkeys(shipped_weights(), 0.0))
    assert np.all(np.diff(best.step_time_s[order]) >= 0)


def test_a_heavy_weight_moves_a_feature_back_inside_the_window() -> None:
    s, best = CASES["llama"]
    heavy = dict.fromkeys(shipped_weights(), 0.0) | {"pipeline_doublings": 5.0}
    inside = best.step_time_s <= best.step_time_s.min() * np.exp(PREFERENCE_WINDOW)
    order = preferred_order(s, best, CAPACITY_BYTES, heavy)
    assert best.plans["pp"][order[0]] == best.plans["pp"][inside].min()


@BOTH
def test_chosen_plans_differ_in_family_and_keep_the_order(s: Scenario, best: Ranked) -> None:
    order = preferred_order(s, best, CAPACITY_BYTES, shipped_weights())
    rows = different(best.plans, order)
    families = [
        (*(int(best.plans[name][row]) for name in FAMILY), bool(best.plans["zero_stage"][row] >= 3))
        for row in rows
    ]
    places = [order.tolist().index(row) for row in rows]
    assert len(rows) == 3
    assert len(set(families)) == 3
    assert places == sorted(places)
    assert places[0] == 0


def test_neighbours_alone_give_one_proposal() -> None:
    best = CASES["llama"][1]
    family = best.take(np.flatnonzero((best.plans["tp"] == 4) & (best.plans["pp"] == 4)))
    same = family.take(np.flatnonzero((family.plans["cp"] == 1) & (family.plans["zero_stage"] < 3)))
    assert len(same.step_time_s) > 1
    assert len(different(same.plans, np.arange(len(same.step_time_s)))) == 1


def test_features_have_the_names_of_the_shipped_weights_and_reluctance_is_their_sum() -> None:
    s, best = CASES["mixtral"]
    columns = features(s, best, CAPACITY_BYTES)
    assert set(columns) == set(shipped_weights())
    assert all(weight >= 0 for weight in shipped_weights().values())
    assert all(np.all(np.isfinite(c)) and len(c) == len(best.step_time_s) for c in columns.values())
    one_each = reluctance(columns, dict.fromkeys(columns, 1.0))
    assert one_each == pytest.approx(np.sum([*columns.values()], axis=0))


def test_features_of_a_plan_by_hand() -> None:
    s, best = CASES["mixtral"]
    p, columns = best.plans, features(s, best, CAPACITY_BYTES)
    row = int(np.argmax((p["ep"] == 4) & (p["pp"] > 1)))
    assert columns["tensor_doublings"][row] == np.log2(p["tp"][row])
    assert columns["expert_doublings"][row] == 2.0
    assert columns["pipeline_doublings_beside_fsdp"][row] == 0.0
    assert columns["filled_memory"][row] == best.memory_bytes[row] / CAPACITY_BYTES
    assert columns["selective_recompute"][row] == (p["recompute"][row] == 1)
    hybrid = (p["zero_stage"][row] > 0) and p["dp_shard"][row] < p["dp"][row] * p["cp"][row]
    assert columns["hybrid_sharding"][row] == hybrid
