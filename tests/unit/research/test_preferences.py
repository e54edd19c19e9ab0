"""Preferences are learned from choices: a known taste is found again, with its sign."""

import json

import numpy as np
import pytest

import kb_seed
from research.preferences import Choice, learn
from tools.recommend.choose import shipped_preferences

NAMES = ("liked", "disliked", "indifferent")
PULL = 0.0125


def choices(weights: list[float], count: int, seed: int = 0) -> list[Choice]:
    """Each expert takes the family with the least cost and the best features, with a little noise."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        cost = rng.exponential(0.1, 60).astype(np.float64)
        columns = rng.integers(0, 3, (60, 3)).astype(np.float64)
        utility = columns @ np.array(weights) - 40.0 * cost + rng.gumbel(size=60)
        made.append(Choice(f"source {number % 5}", cost, columns, np.arange(60) == np.argmax(utility)))
    return made


def test_a_known_taste_is_learned_with_its_sign() -> None:
    found = learn(choices([1.0, -2.0, 0.0], 400), NAMES, PULL)
    assert found.weights == pytest.approx({"liked": 1.0, "disliked": -2.0, "indifferent": 0.0}, abs=0.35)
    assert found.time == pytest.approx(40.0, rel=0.2)


def test_the_shipped_preferences_say_when_and_from_how_many_workloads() -> None:
    data = json.loads(kb_seed.folder("calibration").joinpath("preferences.json").read_text())
    assert data["weights"] == shipped_preferences().weights
    assert data["workloads"] > 0
    assert data["fitted_on"]
