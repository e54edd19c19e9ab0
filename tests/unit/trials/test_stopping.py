"""When no further trial is worth it."""

import pytest

from tools.trials.gain import MIN_GAIN, Budget, judge

PLENTY = Budget(device_hours=10, trials=8)


@pytest.mark.parametrize(
    ("noise", "gains", "stop"),
    [
        (0.01, [0.2], False),
        (0.01, [0.0001], True),
        (0.01, [0.05], False),
        (0.10, [0.05], True),
        (0.01, [0.0, 0.2], False),
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
def test_a_trial_is_worth_it_if_its_gain_would_show(noise: float, gains: list[float], stop: bool) -> None:
    judged = judge(gains, noise, PLENTY)
    assert judged.stop is stop
    if stop and noise < 0.1:
        assert (judged.expected_gain or 0.0) < MIN_GAIN


@pytest.mark.parametrize(
    ("budget", "says"),
    [
        (Budget(10, 8, 1.0, 8), "8 trials"),
        (Budget(10, 8, 10.0, 3), "10 device-hours"),
        (Budget(0, 8), "0 device-hours"),
    ],
)
def test_a_spent_budget_stops_and_says_what_is_left_undone(budget: Budget, says: str) -> None:
    judged = judge([0.5], 0.01, budget)
    assert judged.stop
    assert says in judged.says
    assert judged.expected_gain is not None
