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
"""Asymptotic efficiency of Qn against the standard deviation, under normal noise."""
MAX_DEVIATION_SCATTERS = 3.0
"""Larger deviations are clipped to this before nights are correlated, so that an outlier cannot dominate."""
ONE_SIDED_95 = 1.645
"""Standard errors of a one-sided 95% bound."""
MAX_CORRELATION = 0.8
"""Beyond this the figure drifts, and no number of nights gives a level."""
LEVEL_VARIANCE = np.pi / 3
"""Variance of the Hodges-Lehmann estimate under normal noise, in variances of the mean (1963)."""


def scatter(values: Values) -> float:
    """Qn of Croux and Rousseeuw: a quartile of all differences. Up to half of the nights may be outliers."""
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
    """Lag-one autocorrelation as far as it is proven: the lower bound of the estimate, at least 0.

    Outliers are clipped and the bias is removed (Marriott and Pope 1954); the standard error is that of
    uncorrelated nights (Bartlett 1946).
    """
    n = len(deviations)
    clipped = np.clip(deviations, -MAX_DEVIATION_SCATTERS * scatter, MAX_DEVIATION_SCATTERS * scatter)
    square = float(clipped @ clipped)
    if not square:
        return 0.0
    first = float(clipped[1:] @ clipped[:-1]) / square
    proven = first + (1 + 4 * first) / n - ONE_SIDED_95 / math.sqrt(n)
    return min(max(proven, 0.0), MAX_CORRELATION)


def level_variance(num_nights: int, correlation: float = 0.0) -> float:
    """Variance of a level, in variances of a single night. Up to two nights the level is their mean.

    Correlated nights carry less information: the variance of a mean grows as for a first-order
    autoregression (Box, Jenkins and Reinsel, "Time Series Analysis", section 2.1).
    """
    alone = (1.0 if num_nights <= 2 else LEVEL_VARIANCE) / num_nights
    apart = 1 - correlation
    tail = 2 * correlation * (1 - correlation**num_nights) / (num_nights * apart**2)
    return alone * ((1 + correlation) / apart - tail)


@cache
def limit(chance: float, num_nights: int) -> float:
    """Threshold in scatters; larger when the scatter is estimated from few nights (Student's t)."""
    freedom = max(QN_EFFICIENCY * (num_nights - 1), 1.0)
    return float(stdtrit(freedom, 1.0 - chance))


def median_known(values: Sequence[float | None], default: float) -> float:
    """The median of the values that are not None."""
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else default


@cache
def _pairs(n: int, offset: int) -> tuple[Places, Places]:
    return np.triu_indices(n, offset)
