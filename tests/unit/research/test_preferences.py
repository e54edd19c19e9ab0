"""Preferences are learned from choices: a known taste is found again, and no feature ever earns."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kb_seed
from research.preferences import Choice, learn_weights
from tools.recommend.choose import shipped_weights

NAMES = ("liked", "disliked", "indifferent")


def choices(weights: list[float], count: int, seed: int = 0) -> list[Choice]:
    """Each expert takes the plan with the least log time plus weighted features, with a little noise."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        columns = np.concatenate([rng.exponential(0.1, (60, 1)), rng.integers(0, 3, (60, 3)) * 1.0], axis=1)
        utility = -40.0 * (columns @ np.array([1.0, *weights])) + rng.gumbel(size=60)
        made.append(Choice(columns, np.arange(60) == np.argmax(utility)))
    return made


def test_a_known_taste_is_learned() -> None:
    """Pulled towards zero, so below what the experts really feel, but far above what they do not."""
    found = learn_weights(choices([0.0, 0.1, 0.0], 400), NAMES)
    assert 0.02 < found["disliked"] <= 0.1
    assert found["liked"] < 0.005
    assert found["indifferent"] < 0.005


def test_a_stronger_taste_is_learned_as_stronger() -> None:
    found = [learn_weights(choices([0.0, w, 0.0], 200), NAMES)["disliked"] for w in (0.0, 0.05, 0.1, 0.2)]
    assert found == sorted(found)
    assert found[-1] > found[1] > found[0]


def test_a_feature_that_experts_seek_costs_nothing_rather_than_earns() -> None:
    found = learn_weights(choices([-0.1, 0.0, 0.0], 200), NAMES)
    assert found["liked"] == 0.0


def test_several_plans_that_match_the_expert_count_as_one_choice() -> None:
    """With every plan called the expert's there is nothing to learn."""
    everything = [Choice(c.columns, np.ones(60, dtype=np.bool_)) for c in choices([0.0, 0.3, 0.0], 20)]
    assert learn_weights(everything, NAMES) == pytest.approx(dict.fromkeys(NAMES, 0.0), abs=1e-4)


@settings(max_examples=10)
@given(taste=st.lists(st.floats(0.0, 0.3), min_size=3, max_size=3), seed=st.integers(0, 5))
def test_weights_are_finite_and_not_negative(taste: list[float], seed: int) -> None:
    found = learn_weights(choices(taste, 30, seed), NAMES)
    assert all(np.isfinite(weight) and weight >= 0.0 for weight in found.values())


def test_the_shipped_weights_say_when_and_from_how_many_workloads() -> None:
    data = json.loads(kb_seed.folder("calibration").joinpath("preferences.json").read_text())
    assert data["weights"] == shipped_weights()
    assert data["workloads"] > 0
    assert data["fitted_on"]
