"""Level and scatter of a figure over some nights, by estimators that outliers do not move.

Hodges-Lehmann and Qn instead of median and MAD: as robust in practice, with a third fewer nights for the
same certainty (`make bench-nightly` compares both).
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Values = NDArray[np.float64]
Places = NDArray[np.intp]

QN_FACTOR = 2.21914
"""Makes Qn the standard deviation of normal noise (Croux and Rousseeuw 1992, "Time-efficient algorithms")."""
QN_SMALL = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}
"""Their corrections for few values; above nine n / (n + 1.4) for odd n and n / (n + 3.8) for even."""
QN_EFFICIENCY = 0.82
"""Qn knows as much of the scatter as a standard deviation of so large a share of the nights."""
HELD_SCATTERS = 3.0
"""A night that is further off counts as so far off where nights are compared with the next."""
SURE = 1.645
"""Standard errors below which a true value lies in one of twenty cases."""
MOST_CORRELATION = 0.8
"""Beyond it the figure drifts, and no number of nights makes a level."""
LEVEL_VARIANCE = np.pi / 3
"""Of the Hodges-Lehmann estimate under normal noise, in variances of the mean (Hodges and Lehmann 1963)."""


def scatter(values: Values) -> float:
    """Qn of Croux and Rousseeuw: a quartile of all differences. Half of the nights may be odd."""
    n = len(values)
    if n < 2:
        return 0.0
    first, second = _pairs(n, 1)
    h = n // 2 + 1
    place = h * (h - 1) // 2 - 1
    quartile = np.partition(np.abs(values[first] - values[second]), place)[place]
    correction = QN_SMALL.get(n) or (n / (n + 1.4) if n % 2 else n / (n + 3.8))
    return float(QN_FACTOR * correction * quartile)


def level(values: Values) -> float:
    """The Hodges-Lehmann estimate: the median of the means of all pairs, each value with itself too."""
    first, second = _pairs(len(values), 0)
    sums = values[first] + values[second]
    low, high = (len(sums) - 1) // 2, len(sums) // 2
    parted = np.partition(sums, (low, high))
    return float(parted[low] + parted[high]) / 4


def correlation(deviations: Values, scatter: float) -> float:
    """Of a night with the next, as far as it is proven: the lower bound of the estimate, at least 0.

    The estimate is the first autocorrelation, odd nights held back and its bias taken off (Marriott and Pope
    1954); its standard error is that of nights without correlation (Bartlett 1946).
    """
    n = len(deviations)
    held = np.clip(deviations, -HELD_SCATTERS * scatter, HELD_SCATTERS * scatter)
    square = float(held @ held)
    if not square:
        return 0.0
    first = float(held[1:] @ held[:-1]) / square
    proven = first + (1 + 4 * first) / n - SURE / math.sqrt(n)
    return min(max(proven, 0.0), MOST_CORRELATION)


def level_variance(num_nights: int, correlation: float = 0.0) -> float:
    """Of a level, in variances of a single night. Up to two nights it is their mean.

    Nights that resemble the one before tell less: the variance of a mean grows as for a first-order
    autoregression (Box, Jenkins and Reinsel, "Time Series Analysis", section 2.1).
    """
    alone = (1.0 if num_nights <= 2 else LEVEL_VARIANCE) / num_nights
    apart = 1 - correlation
    tail = 2 * correlation * (1 - correlation**num_nights) / (num_nights * apart**2)
    return alone * ((1 + correlation) / apart - tail)


@cache
def limit(chance: float, num_nights: int) -> float:
    """How many scatters a difference must have; one known from few nights asks for more (Student's t)."""
    freedom = max(QN_EFFICIENCY * (num_nights - 1), 1.0)
    return float(stdtrit(freedom, 1.0 - chance))


def middle(values: Sequence[float | None], otherwise: float) -> float:
    """The median of those that are known."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else otherwise


@cache
def _pairs(n: int, offset: int) -> tuple[Places, Places]:
    return np.triu_indices(n, offset)
