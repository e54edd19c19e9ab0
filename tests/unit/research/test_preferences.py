"""Preferences are learned from choices: a known taste is found again, with its sign."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kb_seed
from research.preferences import Choice, best_pull, learn, left_out, likelihood
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


def test_a_stronger_pull_gives_smaller_weights() -> None:
    told = choices([0.0, -2.0, 0.0], 100)
    found = [abs(learn(told, NAMES, pull).weights["disliked"]) for pull in (0.003, 0.2, 5.0, 100.0)]
    assert found == sorted(found, reverse=True)
    assert found[-1] < 0.5 * found[0]


def test_with_every_family_the_experts_there_is_nothing_to_learn() -> None:
    everything = [replace(c, chosen=np.ones(60, dtype=np.bool_)) for c in choices([0.0, 3.0, 0.0], 20)]
    assert learn(everything, NAMES, PULL).weights == pytest.approx(dict.fromkeys(NAMES, 0.0), abs=1e-4)


def test_a_source_is_judged_by_what_the_others_teach() -> None:
    odd = [replace(c, source="odd") for c in choices([0.0, 4.0, 0.0], 40, seed=3)]
    told = [*choices([0.0, -4.0, 0.0], 40), *odd]
    by_source = left_out(told, NAMES, PULL)
    assert by_source["odd"].weights["disliked"] < -1
    assert by_source["source 0"].weights["disliked"] > by_source["odd"].weights["disliked"]


def test_the_pull_is_the_one_under_which_left_out_choices_are_likeliest() -> None:
    told = choices([1.0, -1.0, 0.0], 60)
    chosen = best_pull(told, NAMES)
    others = [likelihood(told, left_out(told, NAMES, pull)) for pull in (0.003, 0.0125, 0.05, 0.2)]
    assert likelihood(told, left_out(told, NAMES, chosen)) == max(others)


@settings(max_examples=10, deadline=None)
@given(taste=st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3), seed=st.integers(0, 5))
def test_weights_are_finite(taste: list[float], seed: int) -> None:
    found = learn(choices(taste, 30, seed), NAMES, PULL)
    assert all(np.isfinite(weight) for weight in found.weights.values())
    assert 0 < found.time < np.inf


def test_the_shipped_preferences_say_when_and_from_how_many_workloads() -> None:
    data = json.loads(kb_seed.folder("calibration").joinpath("preferences.json").read_text())
    assert data["weights"] == shipped_preferences().weights
    assert data["workloads"] > 0
    assert data["fitted_on"]
