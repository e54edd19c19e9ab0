"""How far clusters lie from a fit that has not seen them: the prior of `asap calibrate`.

Maximises the marginal likelihood of the errors of whole sources left out, a cluster (a source's rows on one
device) at a time, over the few numbers of `ClusterPrior` (Rasmussen and Williams, Gaussian Processes for
Machine Learning, section 5.4.1).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from research.errors import Corrected
from research.fit import FULL_WEIGHT_ROWS, Indices, Table
from tools.model.cluster import FEATURES, ClusterPrior, features
from tools.model.intervals import IntervalModel, exposures
from tools.physics.inputs import Array

MAX_ERROR = 0.6
"""Log errors beyond this are left out, as `asap calibrate` leaves out such runs."""
MAX_ROWS = 100
"""Of a cluster, drawn at random: the sweep's 691 rows would take minutes."""
START = {"offset": 0.1, "likeness": 0.1, "own": 0.5}
CONSTANTS = 0.9
"""Freedom of the constants where a cluster's runs show terms: as this likelihood had it when they always
moved. For runs without terms they are held fixed (docs/calibrate.md)."""
LENGTH = 4.0
"""Of every feature at the start: four doublings."""
START_SPREAD, LENGTH_SPREAD = 1.0, 1.5
"""How far these may lie from where they start, in logarithms: a weak prior."""


@dataclass(frozen=True)
class ClusterErrors:
    """The runs of one cluster: how they lie, and log of measured over predicted without their source."""

    source: str
    device: str
    rows: Indices
    """In the table they were taken from."""
    features: Array
    spread: Array
    """Of each prediction, by the interval model."""
    errors: Array


def cluster_errors(table: Table, corrected: Corrected, intervals: IntervalModel) -> list[ClusterErrors]:
    """`corrected` by fits that have not seen the row's source."""
    exposed = exposures(table.inputs, corrected.terms, corrected.distance)
    spread = np.sqrt(sum(intervals.variances(exposed).parts))
    places, errors = features(table.inputs), np.log(table.measured_s / corrected.predicted_s)
    pairs = list(zip(table.sources, table.keys.device, strict=True))
    clusters = []
    for pair in sorted(set(pairs)):
        rows = np.array([i for i, other in enumerate(pairs) if other == pair])
        clusters.append(ClusterErrors(*pair, rows, places[rows], spread[rows], errors[rows]))
    return clusters


def learn_prior(clusters: Sequence[ClusterErrors]) -> ClusterPrior:
    parts = [_Likelihood.of(cluster) for cluster in clusters]
    start = np.log([*START.values(), *(LENGTH for _ in FEATURES)])
    spread = np.array([*(START_SPREAD for _ in START), *(LENGTH_SPREAD for _ in FEATURES)])

    def objective(values: Array) -> tuple[float, Array]:
        away = (values - start) / spread
        total, slope = 0.5 * float(away @ away), away / spread
        for part in parts:
            value, gradient = part.negative_log(values)
            total, slope = total + value, slope + gradient
        return total, slope

    found = minimize(objective, start, jac=True, method="L-BFGS-B")
    values = [round(float(value), 4) for value in np.exp(found.x)]
    lengths = dict(zip(FEATURES, values[len(START) :], strict=True))
    return ClusterPrior(**dict(zip(START, values, strict=False)), constants=CONSTANTS, lengths=lengths)


@dataclass(frozen=True)
class _Likelihood:
    """Of one cluster's errors, with the parts of their covariance that do not change."""

    errors: Array
    spread: Array
    apart: Array
    weight: float

    @classmethod
    def of(cls, cluster: ClusterErrors) -> "_Likelihood":
        rows = np.flatnonzero(np.abs(cluster.errors) <= MAX_ERROR)
        if len(rows) > MAX_ROWS:
            rows = np.random.default_rng(0).choice(rows, MAX_ROWS, replace=False)
        places = cluster.features[rows]
        apart = np.abs(places[:, None, :] - places[None, :, :])
        # many runs of one cluster resemble each other
        weight = min(1.0, float(np.sqrt(FULL_WEIGHT_ROWS / max(len(rows), 1))))
        return cls(cluster.errors[rows], cluster.spread[rows], apart, weight)

    def negative_log(self, values: Array) -> tuple[float, Array]:
        """And its slope by the logarithm of each number."""
        offset, likeness, own = np.exp(2.0 * values[: len(START)])
        lengths, count = np.exp(values[len(START) :]), len(self.errors)
        alike = likeness * np.exp(-self.apart @ (1.0 / lengths))
        parts: list[NDArray[np.float64]] = [
            np.full((count, count), 2.0 * offset),
            2.0 * alike,
            2.0 * own * np.diag(self.spread**2),
        ]
        inverse = np.linalg.inv(sum(parts, np.zeros((count, count))) / 2.0)
        weights = inverse @ self.errors
        _, log_determinant = np.linalg.slogdet(inverse)
        outer = inverse - np.outer(weights, weights)
        slopes = [0.5 * np.sum(outer * part) for part in parts]
        by_length = 0.5 * np.einsum("ij,ijk->k", outer * alike, self.apart) / lengths
        value = 0.5 * float(self.errors @ weights - log_determinant)
        return self.weight * value, self.weight * np.concatenate([slopes, by_length])
