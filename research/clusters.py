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

from research.fit import FULL_WEIGHT_ROWS, Indices, Table
from tools.cost.cluster import FEATURES, ClusterPrior, Points, constant_spread, points_of
from tools.cost.constants import Shifts
from tools.cost.inputs import Array

MAX_ERROR = 0.6
"""Log errors beyond this are left out, as `asap calibrate` leaves out such runs."""
MAX_ROWS = 100
"""Of a cluster, drawn at random: the sweep's 691 rows would take minutes."""
START = {"offset": 0.1, "constants": 0.5, "likeness": 0.1, "noise": 0.05, "moe_noise": 0.05}
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
    points: Points
    errors: Array


def cluster_errors(table: Table, predicted_s: Array, shifts: Shifts) -> list[ClusterErrors]:
    """`predicted_s` by fits that have not seen the row's source."""
    points = points_of(table.inputs, table.keys, shifts)
    errors = np.log(table.measured_s / predicted_s)
    names = np.array([f"{s}|{d}" for s, d in zip(table.sources, table.keys.device, strict=True)])
    clusters = []
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        source, device = str(name).split("|")
        clusters.append(ClusterErrors(source, device, rows, points.take(rows), errors[rows]))
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
    return ClusterPrior(**dict(zip(START, values, strict=False)), lengths=lengths)


@dataclass(frozen=True)
class _Likelihood:
    """Of one cluster's errors, with the parts of their covariance that do not change."""

    errors: Array
    is_moe: Array
    constants: Array
    apart: Array
    weight: float

    @classmethod
    def of(cls, cluster: ClusterErrors) -> "_Likelihood":
        rows = np.flatnonzero(np.abs(cluster.errors) <= MAX_ERROR)
        if len(rows) > MAX_ROWS:
            rows = np.random.default_rng(0).choice(rows, MAX_ROWS, replace=False)
        points = cluster.points.take(rows)
        slopes = points.slopes * np.array(constant_spread())
        apart = np.abs(points.features[:, None, :] - points.features[None, :, :])
        # many runs of one cluster resemble each other
        weight = min(1.0, float(np.sqrt(FULL_WEIGHT_ROWS / max(len(rows), 1))))
        return cls(cluster.errors[rows], points.is_moe, slopes @ slopes.T, apart, weight)

    def negative_log(self, values: Array) -> tuple[float, Array]:
        """And its slope by the logarithm of each number."""
        offset, constants, likeness, noise, moe_noise = np.exp(2.0 * values[: len(START)])
        lengths, count = np.exp(values[len(START) :]), len(self.errors)
        alike = likeness * np.exp(-self.apart @ (1.0 / lengths))
        parts: list[NDArray[np.float64]] = [
            np.full((count, count), 2.0 * offset),
            2.0 * constants * self.constants,
            2.0 * alike,
            2.0 * noise * np.diag(1.0 - self.is_moe),
            2.0 * moe_noise * np.diag(self.is_moe),
        ]
        inverse = np.linalg.inv(sum(parts, np.zeros((count, count))) / 2.0)
        weights = inverse @ self.errors
        _, log_determinant = np.linalg.slogdet(inverse)
        outer = inverse - np.outer(weights, weights)
        slopes = [0.5 * np.sum(outer * part) for part in parts]
        by_length = 0.5 * np.einsum("ij,ijk->k", outer * alike, self.apart) / lengths
        value = 0.5 * float(self.errors @ weights - log_determinant)
        return self.weight * value, self.weight * np.concatenate([slopes, by_length])
