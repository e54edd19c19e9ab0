"""The nightly review holds what docs/nightly.md claims of it, on synthetic histories with fixed seeds.

`make bench-nightly` prints the whole table; here stand the figures that must not get worse.
"""

import numpy as np
import pytest

from research.nights import SHAPES, Noise, score_found, score_quiet

HISTORIES = 40
MAX_ALARMS = dict.fromkeys(SHAPES, 0.3) | {"normal": 0.1}
"""A quiet month."""


@pytest.mark.parametrize(
    ("noise_ratio", "size_ratio", "two_nights", "fortnight"),
    [(0.01, 0.02, 0.0, 0.5), (0.01, 0.05, 0.8, 1.0), (0.02, 0.05, 0.0, 0.85), (0.02, 0.1, 0.75, 1.0)],
)
def test_regressions_are_found(
    noise_ratio: float, size_ratio: float, two_nights: float, fortnight: float
) -> None:
    found = score_found(np.random.default_rng(8), Noise(noise_ratio), size_ratio, HISTORIES)
    assert found.two_nights >= two_nights
    assert found.fortnight >= fortnight
    assert found.precision >= 0.85
    assert found.term_right >= 0.9


@pytest.mark.parametrize(
    "shape", ["normal", *(pytest.param(shape, marks=pytest.mark.slow) for shape in SHAPES[1:])]
)
def test_a_quiet_month_has_few_false_alarms(shape: str) -> None:
    quiet = score_quiet(np.random.default_rng(8), Noise(0.02, shape), HISTORIES // 3)
    assert quiet.alarms <= MAX_ALARMS[shape]
    assert quiet.notices <= 0.5


def test_the_recorded_cause_is_named_first() -> None:
    found = score_found(np.random.default_rng(8), Noise(0.02), 0.1, HISTORIES)
    assert found.cause_right >= 0.9


def test_a_regression_far_below_the_noise_is_not_claimed() -> None:
    found = score_found(np.random.default_rng(8), Noise(0.13), 0.02, HISTORIES)
    assert found.fortnight <= 0.1
