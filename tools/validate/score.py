"""Error figures of a set of rows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.cost.inputs import Array

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """Measured, predicted by a fit without the row, and the interval learned without it."""

    measured_s: Array
    predicted_s: Array
    low_s: Array
    high_s: Array


@dataclass(frozen=True)
class Score:
    rows: int
    mape: float
    median: float
    bias: float
    within_10: float
    coverage: float


def score(outcome: Outcome, rows: Mask) -> Score:
    relative = outcome.predicted_s[rows] / outcome.measured_s[rows] - 1.0
    error = np.abs(relative)
    inside = (outcome.low_s <= outcome.measured_s) & (outcome.measured_s <= outcome.high_s)
    return Score(
        rows=int(rows.sum()),
        mape=float(error.mean()),
        median=float(np.median(error)),
        bias=float(np.median(relative)),
        within_10=float((error <= 0.1).mean()),
        coverage=float(inside[rows].mean()),
    )


@dataclass(frozen=True)
class MemoryScore:
    rows: int
    mape: float
    fits_share: float


def memory_score(predicted_gib: Array, measured_gib: Array, fits: Mask) -> MemoryScore:
    """Error where a peak was published (else NaN), and the share of rows, which all ran, said to fit."""
    known = ~np.isnan(measured_gib)
    error = np.abs(predicted_gib[known] / measured_gib[known] - 1.0)
    return MemoryScore(int(known.sum()), float(error.mean()), float(fits.mean()))
