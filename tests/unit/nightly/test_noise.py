import numpy as np
import pytest

from tools.nightly.noise import (
    FigureValues,
    correlation,
    scatter,
)


def draw(random: np.random.Generator, count: int, share: float = 0.0) -> FigureValues:
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
