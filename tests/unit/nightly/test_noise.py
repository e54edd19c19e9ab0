import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.nightly.noise import (
    MAX_CORRELATION,
    Values,
    correlation,
    level,
    level_variance,
    limit,
    median_known,
    scatter,
)

figures = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60)


@pytest.mark.parametrize("count", [3, 5, 8, 9, 10, 15, 28])
def test_scatter_is_the_standard_deviation_of_normal_noise(count: int) -> None:
    random = np.random.default_rng(count)
    found = np.mean([scatter(random.normal(5.0, 2.0, count)) for _ in range(1500)])
    assert found == pytest.approx(2.0, rel=0.06)


def test_scatter_of_no_or_one_night_is_nothing() -> None:
    assert scatter(np.array([])) == 0.0
    assert scatter(np.array([3.0])) == 0.0


def test_odd_nights_move_neither_level_nor_scatter_far() -> None:
    values = np.random.default_rng(1).normal(0.0, 1.0, 28)
    odd = values.copy()
    odd[:5] += 1000.0
    assert abs(level(odd) - level(values)) < 1.0
    assert scatter(odd) < 2.5 * scatter(values)


@given(figures)
def test_level_lies_among_the_values(values: list[float]) -> None:
    found = level(np.array(values))
    slack = 1e-9 * max(1.0, max(map(abs, values)))
    assert min(values) - slack <= found <= max(values) + slack


@given(figures, st.floats(-100, 100), st.floats(0.01, 100))
def test_level_and_scatter_go_with_shift_and_unit(values: list[float], shift: float, unit: float) -> None:
    given_values = np.array(values)
    moved = shift + unit * given_values
    slack = 1e-6 * max(1.0, float(np.abs(moved).max()), unit * float(np.abs(given_values).max()))
    assert level(moved) == pytest.approx(shift + unit * level(given_values), abs=slack)
    assert scatter(moved) == pytest.approx(unit * scatter(given_values), abs=slack)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 20])
def test_level_varies_as_it_says(count: int) -> None:
    random = np.random.default_rng(count)
    found = np.var([level(random.normal(0.0, 1.0, count)) for _ in range(2000)])
    assert found == pytest.approx(level_variance(count), rel=0.12)


def test_a_scatter_known_from_few_nights_asks_for_more() -> None:
    limits = [limit(1e-4, nights) for nights in (5, 10, 28)]
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] > 3.7  # the normal distribution's own


def test_middle_leaves_out_what_is_not_known() -> None:
    assert median_known([None, 3.0, 1.0, 2.0], 9.0) == 2.0
    assert median_known([None], 9.0) == 9.0


def _wandering(random: np.random.Generator, alike: float, count: int) -> Values:
    """Nights of which each keeps a share of the deviation of the one before."""
    nights = [random.normal()]
    for jump in random.normal(0.0, np.sqrt(1 - alike**2), count - 1):
        nights.append(alike * nights[-1] + jump)
    return np.array(nights)


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("count", [2, 7, 28])
def test_level_of_nights_that_resemble_each_other_scatters_as_foretold(alike: float, count: int) -> None:
    random = np.random.default_rng(count)
    found = np.var([level(_wandering(random, alike, count)) for _ in range(4000)])
    assert found == pytest.approx(level_variance(count, alike), rel=0.12)


def test_correlation_is_seen_where_it_is_and_seldom_elsewhere() -> None:
    random = np.random.default_rng(3)
    apart = [correlation(random.normal(0.0, 1.0, 28), 1.0) for _ in range(500)]
    alike = [correlation(_wandering(random, 0.7, 28), 1.0) for _ in range(500)]
    assert np.mean(apart) < 0.05
    assert np.mean(np.array(alike) > 0.1) > 0.8


@given(figures, st.floats(0, 1e6))
def test_correlation_is_a_share_whatever_the_nights(values: list[float], scatter: float) -> None:
    assert 0.0 <= correlation(np.array(values), scatter) <= MAX_CORRELATION


def test_odd_nights_neither_make_a_correlation_nor_hide_one() -> None:
    random = np.random.default_rng(5)
    made, left = [], []
    for _ in range(200):
        apart, alike = random.normal(0.0, 1.0, 28), _wandering(random, 0.7, 28)
        apart[10:12] += 1000.0
        alike[10] += 1000.0
        made.append(correlation(apart, 1.0))
        left.append(correlation(alike, 1.0))
    assert np.mean(made) < 0.15
    assert np.mean(left) > 0.2
