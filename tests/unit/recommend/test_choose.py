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
from tools.search.ranked import NOTHING, Ranked
from tools.search.search import Search

CAPACITY_BYTES = 79.1 * 2**30


def ranked(raw: dict[str, object]) -> tuple[Scenario, Ranked]:
    s = parse_scenario(raw)
    return s, Search(s, Constraints()).run().best


CASES = {"llama": ranked(llama()), "mixtral": ranked(MIXTRAL)}
BOTH = pytest.mark.parametrize(("s", "best"), CASES.values(), ids=CASES.keys())
NO_WEIGHTS = dict.fromkeys(shipped_weights(), 0.0)
WEIGHTS = st.fixed_dictionaries({name: st.floats(0.0, 2.0) for name in NO_WEIGHTS})


def test_no_plans_give_no_proposals() -> None:
    assert choose(CASES["llama"][0], NOTHING, CAPACITY_BYTES, shipped_weights()) == []


@settings(max_examples=40)
@given(name=st.sampled_from(sorted(CASES)), weights=WEIGHTS | st.just(shipped_weights()))
def test_whatever_the_weights_preference_orders_only_inside_the_window(
    name: str, weights: dict[str, float]
) -> None:
    s, best = CASES[name]
    order = preferred_order(s, best, CAPACITY_BYTES, weights)
    times = best.step_time_s[order]
    inside = times <= best.step_time_s.min() * np.exp(PREFERENCE_WINDOW)
    first_beyond = int(np.sum(inside))
    assert first_beyond > 0
    assert sorted(order.tolist()) == list(range(len(times)))
    assert np.all(inside[:first_beyond])
    assert np.all(np.diff(times[first_beyond:]) >= 0)


@BOTH
def test_without_weights_the_order_is_the_predictions(s: Scenario, best: Ranked) -> None:
    order = preferred_order(s, best, CAPACITY_BYTES, NO_WEIGHTS)
    assert np.all(np.diff(best.step_time_s[order]) >= 0)


def test_a_heavy_weight_moves_a_feature_back_inside_the_window() -> None:
    s, best = CASES["llama"]
    inside = best.step_time_s <= best.step_time_s.min() * np.exp(PREFERENCE_WINDOW)
    order = preferred_order(s, best, CAPACITY_BYTES, NO_WEIGHTS | {"pipeline_doublings": 5.0})
    assert best.plans["pp"][order[0]] == best.plans["pp"][inside].min()


@BOTH
def test_chosen_plans_differ_in_family_and_keep_the_order(s: Scenario, best: Ranked) -> None:
    order = preferred_order(s, best, CAPACITY_BYTES, shipped_weights())
    rows = different(best.plans, order)
    families = {
        (*(int(best.plans[name][row]) for name in FAMILY), bool(best.plans["zero_stage"][row] >= 3))
        for row in rows
    }
    places = [order.tolist().index(row) for row in rows]
    assert len(rows) == len(families) == 3
    assert places == sorted(places)
    assert places[0] == 0


def test_neighbours_alone_give_one_proposal() -> None:
    p = CASES["llama"][1].plans
    alike = (p["tp"] == 4) & (p["pp"] == 4) & (p["cp"] == 1) & (p["zero_stage"] < 3)
    same = CASES["llama"][1].take(np.flatnonzero(alike))
    assert len(same.step_time_s) > 1
    assert len(different(same.plans, np.arange(len(same.step_time_s)))) == 1


def test_features_have_the_names_of_the_shipped_weights_and_reluctance_is_their_sum() -> None:
    s, best = CASES["mixtral"]
    columns = features(s, best, CAPACITY_BYTES)
    assert set(columns) == set(shipped_weights())
    assert all(weight >= 0 for weight in shipped_weights().values())
    assert all(np.all(np.isfinite(c)) and len(c) == len(best.step_time_s) for c in columns.values())
    unweighted = reluctance(columns, dict.fromkeys(columns, 1.0))
    assert unweighted == pytest.approx(np.sum([*columns.values()], axis=0))


def test_features_of_a_plan_by_hand() -> None:
    s, best = CASES["mixtral"]
    p, columns = best.plans, features(s, best, CAPACITY_BYTES)
    row = int(np.argmax((p["ep"] == 4) & (p["pp"] > 1)))
    hybrid = (p["zero_stage"][row] > 0) and p["dp_shard"][row] < p["dp"][row] * p["cp"][row]
    expected = {
        "tensor_doublings": np.log2(p["tp"][row]),
        "expert_doublings": 2.0,
        "pipeline_doublings_beside_fsdp": 0.0,
        "filled_memory": best.memory_bytes[row] / CAPACITY_BYTES,
        "selective_recompute": p["recompute"][row] == 1,
        "hybrid_sharding": hybrid,
    }
    assert {name: columns[name][row] for name in expected} == expected
