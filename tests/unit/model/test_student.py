"""Student's t against printed tables."""

import math

import pytest

from tools.model.student import student_limit

TABLE: dict[tuple[float, float], float] = {
    (0.05, 1): 6.314, (0.05, 10): 1.812, (0.05, 100): 1.660, (0.025, 2): 4.303, (0.025, 30): 2.042,
    (0.01, 5): 3.365, (0.005, 20): 2.845, (0.001, 3): 10.215, (0.001, 60): 3.232, (0.1, 4): 1.533,
}  # fmt: skip
"""NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2: upper critical values by chance and freedom."""


@pytest.mark.parametrize(("chance", "freedom"), TABLE)
def test_limits_are_those_of_the_handbook(chance: float, freedom: float) -> None:
    assert student_limit(chance, freedom) == pytest.approx(TABLE[chance, freedom], abs=5e-4)


def test_one_and_two_degrees_of_freedom_have_a_closed_form_far_into_the_tail() -> None:
    for chance in (0.4, 0.1, 1e-3, 1e-6, 1e-9):
        assert student_limit(chance, 1.0) == pytest.approx(1.0 / math.tan(math.pi * chance), rel=1e-9)
        two = (1.0 - 2.0 * chance) / math.sqrt(2.0 * chance * (1.0 - chance))
        assert student_limit(chance, 2.0) == pytest.approx(two, rel=1e-9)
