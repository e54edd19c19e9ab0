"""The nightly review holds what docs/nightly.md claims of it, on synthetic histories with fixed seeds.

`make bench NAME=nightly` prints the whole table; here stand the figures that must not get worse.
"""

import numpy as np
import pytest

from research.nights import (
    SHAPES,
    Noise,
    Task,
    attributed,
    false_alarms,
    histories,
    quiet_months,
    recall,
    review_alarms,
)

COUNT = 25
MAX_ALARMS = dict.fromkeys(SHAPES, 0.15) | {"normal": 0.1}
"""In a quiet month."""
TWO_STEPS, MANY_STEPS = Noise(0.01, num_steps=2), Noise(0.01, num_steps=40)


@pytest.mark.parametrize(
    ("task", "share"),
    [
        (Task(0.04, TWO_STEPS, 8, 6, True), 0.9),
        (Task(0.04, TWO_STEPS, 8, 6, False), 0.6),
        (Task(0.04, TWO_STEPS, 8, 6, True, is_alike=True), 0.8),
        (Task(0.03, MANY_STEPS, 14, 4), 0.9),
        (Task(0.02, Noise(0.13), 21, 14), 0.0),
    ],
)
def test_regressions_are_found_in_time(task: Task, share: float) -> None:
    found = recall(list(histories(np.random.default_rng(8), task, COUNT)), review_alarms)
    assert found >= share
    assert share or found <= 0.1  # far below the noise nothing is claimed


@pytest.mark.parametrize(
    "shape", ["normal", *(pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES[1:])]
)
def test_a_quiet_month_has_few_false_alarms(shape: str) -> None:
    months = quiet_months(np.random.default_rng(8), Noise(0.02, shape), COUNT)
    assert false_alarms(months, review_alarms)[0] <= MAX_ALARMS[shape]


def test_the_term_that_grew_and_the_recorded_cause_are_named_first() -> None:
    task = Task(0.05, Noise(0.01), 21, 7, is_recorded=True)
    term, cause = attributed(list(histories(np.random.default_rng(8), task, COUNT)))
    assert (term >= 0.9, cause >= 0.85) == (True, True)
