import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.nightly.noise import (
    MAX_CORRELATION,
    Values,
    correlation,
    degrees_of_freedom,
    level,
    level_variance,
    limit,
    median_known,
    scatter,
)

figures = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60).map(np.array)


def draw(random: np.random.Generator, count: int, share: float = 0.0) -> Values:
    """Normal nights, each of which keeps a share of the deviation of the one before."""
    nights = [random.normal()]
    for jump in random.normal(0.0, np.sqrt(1 - share**2), count - 1):
        nights.append(share * nights[-1] + jump)
    return np.array(nights)


@pytest.mark.parametrize("count", [8, 9, 10, 15, 28])
def test_scatter_is_the_standard_deviation_of_normal_noise(count: int) -> None:
    random = np.random.default_rng(count)
    mean = np.mean([scatter(random.normal(5.0, 2.0, count)) for _ in range(1500)])
    assert mean == pytest.approx(2.0, rel=0.06)


def test_scatter_of_no_or_one_night_is_zero() -> None:
    assert [scatter(np.array([])), scatter(np.array([3.0]))] == [0.0, 0.0]


def test_odd_nights_move_neither_level_nor_scatter_far() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 28)
    odd = np.where(np.arange(28) < 5, values + 1000.0, values)
    assert abs(level(odd) - level(values)) < 1.0
    assert scatter(odd) < 2.5 * scatter(values)


@given(figures, st.floats(-100, 100), st.floats(0.01, 100))
def test_level_lies_among_the_values_and_both_follow_shift_and_unit(
    values: Values, shift: float, unit: float
) -> None:
    moved = shift + unit * values
    slack = 1e-6 * max(1.0, float(np.abs(moved).max()), unit * float(np.abs(values).max()))
    assert level(moved) == pytest.approx(shift + unit * level(values), abs=slack)
    assert scatter(moved) == pytest.approx(unit * scatter(values), abs=slack)
    slack = 1e-9 * max(1.0, float(np.abs(values).max()))
    assert values.min() - slack <= level(values) <= values.max() + slack


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 9, 20, 28])
def test_level_of_independent_and_of_correlated_nights_varies_as_predicted(count: int, share: float) -> None:
    random = np.random.default_rng(count)
    variance = np.var([level(draw(random, count, share)) for _ in range(4000)])
    assert variance == pytest.approx(level_variance(count, share), rel=0.12)


def test_a_scatter_known_from_few_nights_needs_a_larger_step() -> None:
    limits = [limit(1e-4, degrees_of_freedom(nights)) for nights in (5, 10, 28)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] > 3.7  # the normal distribution's own


def test_the_median_leaves_out_what_is_not_known() -> None:
    assert median_known([None, 3.0, 1.0, 2.0], 9.0) == 2.0
    assert median_known([None], 9.0) == 9.0


@given(figures, st.floats(0, 1e6))
def test_correlation_is_a_share_whatever_the_nights(values: Values, scatter: float) -> None:
    assert 0.0 <= correlation(values, scatter) <= MAX_CORRELATION


def test_correlation_is_seen_if_present_seldom_otherwise_and_despite_odd_nights() -> None:
    random = np.random.default_rng(3)
    odd = np.zeros(28)
    odd[10] = 1000.0
    independent = [draw(random, 28) for _ in range(500)]
    correlated = [draw(random, 28, 0.7) for _ in range(500)]
    assert np.mean([correlation(values, 1.0) for values in independent]) < 0.15
    assert np.mean([correlation(values, 1.0) > 0.1 for values in correlated]) > 0.8
    assert np.mean([correlation(values + odd + np.roll(odd, 1), 1.0) for values in independent]) < 0.4
    assert np.mean([correlation(values + odd, 1.0) for values in correlated]) > 0.2
