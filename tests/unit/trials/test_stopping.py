"""When no further trial is worth it."""

import math
import random
from statistics import mean
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.trials.stopping import MIN_GAIN, Budget, expected_gain, judge, surprise_of

PLENTY = Budget(device_hours=10, trials=8)


class Estimate(NamedTuple):
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float


class Trial(NamedTuple):
    predicted: Estimate
    step_time_s: float
    status: str


def prediction(step_s: float, width: float = 0.1) -> Estimate:
    return Estimate(step_s, step_s * (1 - width), step_s / (1 - width))


def test_the_expected_gain_is_the_mean_over_what_the_plan_may_turn_out_to_be() -> None:
    chance, predicted = random.Random(1), prediction(1.05, 0.2)
    sigma = math.log(predicted.step_time_high_s / predicted.step_time_low_s) / (2 * 1.2815515655)
    drawn = [max(0.0, -math.log(1.05) - chance.gauss(0.0, sigma)) for _ in range(50_000)]
    assert expected_gain(1.0, predicted) == pytest.approx(1 - math.exp(-mean(drawn)), rel=0.02)


@given(st.floats(0.1, 10), st.floats(0.1, 10), st.floats(0.01, 0.9))
def test_a_gain_is_a_share_and_grows_with_what_is_predicted(best: float, step: float, width: float) -> None:
    gain = expected_gain(best, prediction(step, width))
    assert 0.0 <= gain < 1.0
    assert gain <= expected_gain(best, prediction(step * 0.9, width)) + 1e-12


@pytest.mark.parametrize(
    ("noise", "candidates", "stop"),
    [
        (0.01, [prediction(0.8)], False),
        (0.01, [prediction(1.5, 0.05)], True),
        (0.01, [prediction(0.95, 0.02)], False),
        (0.10, [prediction(0.95, 0.02)], True),
        (0.01, [prediction(2.0, 0.02), prediction(0.8, 0.02)], False),
        (0.01, [], True),
    ],
    ids=[
        "surely faster",
        "surely slower",
        "a small gain",
        "hidden by noise",
        "the most promising",
        "none left",
    ],
)
def test_a_trial_is_worth_it_if_its_gain_would_show(
    noise: float, candidates: list[Estimate], stop: bool
) -> None:
    judged = judge(1.0, noise, candidates, PLENTY)
    assert judged.stop is stop
    if stop and noise < 0.1:
        assert (judged.expected_gain or 0.0) < MIN_GAIN


def trial(predicted_s: float, measured_s: float, status: str = "measured") -> Trial:
    return Trial(prediction(predicted_s), measured_s, status)


def test_a_model_that_was_just_wrong_is_not_believed_to_be_sure() -> None:
    slower, wrong = [prediction(1.3, 0.05)], [trial(1, 9), trial(2.3, 1.0)]
    assert judge(1.0, 0.01, slower, PLENTY).stop
    assert not judge(1.0, 0.01, slower, PLENTY, surprise_of(wrong)).stop
    assert judge(1.0, 0.01, slower, PLENTY, surprise_of([*wrong, trial(1, 1), trial(1, 1)])).stop


def test_the_first_measurement_surprises_nobody_and_failures_say_nothing() -> None:
    assert surprise_of([trial(1.0, 9.0)]) == 0.0
    assert surprise_of([trial(1.0, 9.0), trial(1.0, 9.0, "failed")]) == 0.0


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (Budget(10, 8, 1.0, 8), "8 trials"),
        (Budget(10, 8, 10.0, 3), "10 device-hours"),
        (Budget(0, 8), "0 device-hours"),
    ],
)
def test_a_spent_budget_stops_and_says_what_is_left_undone(budget: Budget, says: str) -> None:
    judged = judge(1.0, 0.01, [prediction(0.5)], budget)
    assert judged.stop
    assert says in judged.says
    assert judged.expected_gain is not None
