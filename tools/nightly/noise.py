"""Level and scatter of a figure over some nights, by estimators that outliers do not move.

Hodges-Lehmann and a clipped standard deviation instead of median and MAD: as robust in practice, with a third
fewer nights for the same certainty (`make bench NAME=nightly` compares both).
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

FigureValues = NDArray[np.float64]
Places = NDArray[np.intp]

QN_FACTOR = 2.21914
"""Makes Qn the standard deviation of normal noise (Croux and Rousseeuw 1992, "Time-efficient algorithms")."""
QN_SMALL = {2: 0.399, 3: 0.994, 4: 0.512, 5: 0.844, 6: 0.611, 7: 0.857, 8: 0.669, 9: 0.872}
"""Their corrections for few values; above nine n / (n + 1.4) for odd n and n / (n + 3.8) for even."""
EFFICIENCY = 0.92
"""`scatter` against the standard deviation, under normal noise, from 8 nights on (simulated)."""
USUAL_SCATTER = 0.005
"""Scatter of the step time between nights. Repeated runs of 154 of 174 systems in MLPerf Training 4.0 and 5.1
scatter by less (their published logs, 1,990 runs); nights of a shared cluster by more than runs in a row."""
PRIOR_NIGHTS = 1.0
"""What the usual scatter counts as. The same 174 systems differ so much that a scaled inverse chi-squared
distribution fitted to them has 0.9 degrees of freedom (`research.nights.fit_scatter_prior`)."""
USUAL_CORRELATION = 0.4
"""Standard deviation of the autocorrelation among histories. In the same runs it is 0 on average."""
CORRELATION_CAUTION = 1.6
"""An autocorrelation taken too low costs false alarms, one too high costs a night's delay."""
MAX_DEVIATION_SCATTERS = 3.0
"""Larger deviations are clipped to this before nights are correlated, so that an outlier cannot dominate."""
MAX_CORRELATION = 0.8
"""Beyond this the figure drifts, and no number of nights gives a level."""
LEVEL_VARIANCE = np.pi / 3
"""Variance of the Hodges-Lehmann estimate under normal noise, in variances of the mean (1963)."""


def scatter(values: FigureValues) -> float:
    """The standard deviation after outliers were moved in to three times Qn.

    Nearly as efficient as the standard deviation, where Qn alone throws away a fifth of the nights.
    """
    if len(values) < 2:
        return 0.0
    most = MAX_DEVIATION_SCATTERS * qn(values)
    deviations = np.clip(values - level(values), -most, most)
    return math.sqrt(float(deviations @ deviations) / (len(values) - 1))


def qn(values: FigureValues) -> float:
    """Qn of Croux and Rousseeuw: a quartile of all differences. Up to half of the nights may be outliers."""
    n = len(values)
    first, second = _pairs(n, 1)
    h = n // 2 + 1
    place = h * (h - 1) // 2 - 1
    quartile = np.partition(np.abs(values[first] - values[second]), place)[place]
    correction = QN_SMALL.get(n) or (n / (n + 1.4) if n % 2 else n / (n + 3.8))
    return float(QN_FACTOR * correction * quartile)


def level(values: FigureValues) -> float:
    """The Hodges-Lehmann estimate: the median of the means of all pairs, each value with itself too."""
    first, second = _pairs(len(values), 0)
    sums = values[first] + values[second]
    low, high = (len(sums) - 1) // 2, len(sums) // 2
    parted = np.partition(sums, (low, high))
    return float(parted[low] + parted[high]) / 4


def correlation(deviations: FigureValues, scatter: float) -> float:
    """Lag-one autocorrelation, at least 0: the estimate shrunk by what real histories have.

    Outliers are clipped and the bias is removed (Marriott and Pope 1954); the standard error is that of
    uncorrelated nights (Bartlett 1946), the prior a normal one around 0.
    """
    n = len(deviations)
    clipped = np.clip(deviations, -MAX_DEVIATION_SCATTERS * scatter, MAX_DEVIATION_SCATTERS * scatter)
    square = float(clipped @ clipped)
    if not square:
        return 0.0
    first = float(clipped[1:] @ clipped[:-1]) / square
    unbiased = first + (1 + 4 * first) / n
    shrunk = unbiased * n / (n + 1 / USUAL_CORRELATION**2)
    return min(max(CORRELATION_CAUTION * shrunk, 0.0), MAX_CORRELATION)


def level_variance(num_nights: int, correlation: float = 0.0) -> float:
    """Variance of a level, in variances of a single night. Up to two nights the level is their mean.

    Correlated nights carry less information: the variance of a mean grows as for a first-order
    autoregression (Box, Jenkins and Reinsel, "Time Series Analysis", section 2.1).
    """
    alone = (1.0 if num_nights <= 2 else LEVEL_VARIANCE) / num_nights
    apart = 1 - correlation
    tail = 2 * correlation * (1 - correlation**num_nights) / (num_nights * apart**2)
    return alone * ((1 + correlation) / apart - tail)


def degrees_of_freedom(num_nights: int, num_levels: int = 1) -> float:
    """How many a scatter has that is estimated around as many levels."""
    return max(EFFICIENCY * (num_nights - num_levels), 1.0)


def with_prior(scatter: float, freedom: float, usual: float) -> tuple[float, float]:
    """The scatter and its degrees of freedom, given what such figures usually scatter by.

    The prior is a scaled inverse chi-squared, which is conjugate (Gelman et al., "Bayesian Data Analysis",
    section 2.6): it counts as some more nights that scatter by the usual amount. It never makes a scatter
    smaller than the nights show, which would cost false alarms.
    """
    if scatter >= usual:
        return scatter, freedom
    total = freedom + PRIOR_NIGHTS
    return math.sqrt((freedom * scatter**2 + PRIOR_NIGHTS * usual**2) / total), total


def median_known(values: Sequence[float | None], default: float) -> float:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else default


@cache
def _pairs(n: int, offset: int) -> tuple[Places, Places]:
    return np.triu_indices(n, offset)
