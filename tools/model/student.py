"""Student's t, without SciPy: 114 MB for one quantile."""

import math
from functools import cache
from statistics import NormalDist

ACCURACY = 1e-12


@cache
def student_limit(chance: float, freedom: float) -> float:
    """What a value of Student's t, with this many degrees of freedom, exceeds with this chance."""
    if chance >= 0.5:
        return -student_limit(1.0 - chance, freedom) if chance > 0.5 else 0.0
    # Newton's steps from the normal distribution's limit, which is too low: none overshoots a convex tail.
    limit, step = -NormalDist().inv_cdf(chance), math.inf
    log_scale = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    while step > ACCURACY * max(limit, 1.0):
        density = math.exp(log_scale - (freedom + 1) / 2 * math.log1p(limit**2 / freedom))
        step = (_exceeded(limit, freedom) - chance) / density
        limit += step
    return limit


def _exceeded(t: float, freedom: float) -> float:
    """The chance of more than this t, which is positive: half of I_x(n/2, 1/2) with x = n / (n + t²)."""
    a, x = freedom / 2.0, freedom / (freedom + t * t)
    if x < (a + 1.0) / (a + 2.5):
        return 0.5 * _incomplete_beta(x, a, 0.5)
    return 0.5 - 0.5 * _incomplete_beta(t * t / (freedom + t * t), 0.5, a)


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) by its continued fraction (https://dlmf.nist.gov/8.17#v), from the last term back."""
    fraction = 1.0
    for m in range(20 + round(2.0 * math.sqrt(a + b)), -1, -1):
        fraction = 1.0 - (a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)) / fraction
        if m:
            fraction = 1.0 + m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / fraction
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    return math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta) / (a * fraction)
