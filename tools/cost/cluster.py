"""What runs of one cluster say about others of it: the cost model's error there as a Gaussian process.

A run's log error (measured over predicted) is the sum of the cluster's common offset, its own values of the
constants (through their slopes), what alike runs share and no constant explains, and noise. How far a new
cluster may lie in each is the between-source variance that `make fit` learned. Source of the form: Kennedy
and O'Hagan, Bayesian calibration of computer models (2001).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tools.cost.constants import Coefficients, RowKeys, Shifts, definitions, resolve
from tools.cost.inputs import Array, Inputs
from tools.cost.step import Breakdown, step_breakdown

FEATURES = (
    *("hidden", "layers", "seq", "batch", "devices", "micro_batch", "tp", "pp", "cp", "ep"),
    *("sharding", "moe", "precision"),
)
"""By which two runs are alike: doublings of sizes and degrees, the ZeRO stage, dense or not, bytes."""
Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class ClusterPrior:
    """Standard deviations of log time among clusters that the fit has not seen."""

    offset: float
    """Of what all runs of a cluster share."""
    constants: float
    """Of the constants, over their spread in coefficients.toml."""
    likeness: float
    """Of what alike runs share."""
    noise: float
    """Of a run of a dense model alone."""
    moe_noise: float
    lengths: Mapping[str, float]
    """Over which distance the likeness of two runs falls to 1/e, by feature."""

    @property
    def length_array(self) -> Array:
        return np.array([self.lengths[name] for name in FEATURES])


@dataclass(frozen=True)
class Points:
    """Runs or plans as the covariance sees them: a row each."""

    slopes: Array
    """Of log time by each constant's logarithm."""
    features: Array
    shared: Array
    """1 for a time, 0 for a constant measured by itself: no offset and no likeness touch that."""

    @property
    def is_moe(self) -> Array:
        return np.asarray(self.features[:, FEATURES.index("moe")])

    def take(self, rows: NDArray[np.intp]) -> "Points":
        return Points(self.slopes[rows], self.features[rows], self.shared[rows])


def features(x: Inputs) -> Array:
    """One row per plan, one column per name of FEATURES."""
    stage = np.where(x.dp_shard > 1, x.zero, 0.0)
    sizes = [getattr(x, name) for name in FEATURES[:10]]
    columns = [*(np.log2(np.maximum(size, 1.0)) for size in sizes), stage, x.is_moe, np.log2(x.gemm_bytes)]
    return np.stack([np.broadcast_to(column, (x.size,)) for column in columns], axis=1)


@cache
def constant_spread() -> tuple[float, ...]:
    """Levels of a constant's spread are independent: variances add up."""
    return tuple(math.hypot(*d.spread.values()) if d.spread else 0.0 for d in definitions())


NUDGE = 1e-4
BLOCK_ROWS = 8192


def log_bounds() -> tuple[Array, Array]:
    """Of each constant, as columns."""
    return np.log([[d.low] for d in definitions()]), np.log([[d.high] for d in definitions()])


def terms_s(x: Inputs, log_values: Array) -> Array:
    """Seconds: a row per term of the step, a column per plan; `log_values` has a row per constant."""
    names = [d.name for d in definitions()]
    constants = Coefficients(**dict(zip(names, np.exp(log_values), strict=True)))
    breakdown, rows = step_breakdown(x, constants), log_values.shape[1]
    return np.array([np.broadcast_to(getattr(breakdown, f.name), (rows,)) for f in fields(Breakdown)])


def nudged_terms_s(x: Inputs, log_values: Array) -> Array:
    """`terms_s` as they are, then with each constant nudged in turn: terms by nudges by plans, in one long
    evaluation of the plans repeated."""
    number, rows = log_values.shape
    tiled = np.tile(log_values, (1, number + 1))
    for i in range(number):
        tiled[i, (i + 1) * rows : (i + 2) * rows] += NUDGE
    index = np.tile(np.arange(rows), number + 1)
    blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, len(index), BLOCK_ROWS)]
    parts = [terms_s(x.take(index[block]), tiled[:, block]) for block in blocks]
    return np.concatenate(parts, axis=1).reshape(-1, number + 1, rows)


def with_slopes(nudged: Array) -> tuple[Array, Array]:
    """Logarithms of what `nudged_terms_s` gave (summed over terms), and their slopes by each constant."""
    logs = np.log(nudged)
    return logs[0], (logs[1:] - logs[0]) / NUDGE


def resolved_logs(keys: RowKeys, rows: int, shifts: Shifts) -> Array:
    """Logarithms of all constants for each row."""
    values = resolve(keys, shifts)
    return np.log([np.broadcast_to(getattr(values, d.name), (rows,)) for d in definitions()])


def points_of(x: Inputs, keys: RowKeys, shifts: Shifts) -> Points:
    """Plans, with the slopes of their time at the constants as they are."""
    _, slopes = with_slopes(nudged_terms_s(x, resolved_logs(keys, x.size, shifts)).sum(axis=0))
    return Points(slopes.T, features(x), np.ones(x.size))


def covariance(prior: ClusterPrior, left: Points, right: Points) -> Array:
    """Between the log errors of two sets of runs, noise left out."""
    spread = prior.constants * np.array(constant_spread())
    shared = (left.slopes * spread) @ (right.slopes * spread).T
    common = prior.offset**2 + prior.likeness**2 * likeness(prior, left.features, right.features)
    return shared + common * np.outer(left.shared, right.shared)


def noises(prior: ClusterPrior, points: Points) -> Array:
    """Variances of what each run has alone."""
    return np.where(points.is_moe > 0, prior.moe_noise, prior.noise) ** 2 * points.shared


def variances(prior: ClusterPrior, points: Points) -> Array:
    """The diagonal of `covariance` of points with themselves."""
    spread = prior.constants * np.array(constant_spread())
    shared = np.sum((points.slopes * spread) ** 2, axis=1)
    return np.asarray(shared + (prior.offset**2 + prior.likeness**2) * points.shared)


def likeness(prior: ClusterPrior, left: Array, right: Array) -> Array:
    """From 1 (the same) to 0, for each pair."""
    lengths = prior.length_array
    apart = np.zeros((len(left), len(right)))
    for column, length in enumerate(lengths):  # one at a time: a search asks for thousands of plans
        apart += np.abs(np.subtract.outer(left[:, column], right[:, column])) / length
    return np.exp(-apart)


@dataclass(frozen=True)
class ClusterModel:
    """The posterior of one cluster, small enough for a session's state."""

    name: str
    device: str
    runs: int
    prior: ClusterPrior
    """As used: wider than the fit's for a stack that it has not seen."""
    slopes: Matrix
    features: Matrix
    shared: Sequence[float]
    weights: Sequence[float]
    """Of each run in what is predicted for others."""
    inverse: Matrix
    """Of the runs' covariance with their noise."""
    memory_shift: float
    """Logarithm of the peaks measured over those predicted, as far as the runs bear it out."""
    memory_error: float
    """Standard deviation of that logarithm for another run of the cluster."""
    says: str = ""
    """12 runs, ±4.1%."""
    version: int = 0
    """Of the cluster's calibration in an installation; 0 if it is from a file."""

    @property
    def memory_factor(self) -> float:
        """On predicted peaks."""
        return math.exp(self.memory_shift)

    @property
    def points(self) -> Points:
        return Points(np.array(self.slopes), np.array(self.features), np.array(self.shared))

    def factor(self, x: Inputs, keys: RowKeys) -> Array:
        """On the step time of each row, beside what the constants' shifts do; 1 on other devices."""
        if not self.weights:
            return np.ones(x.size)
        weights, own = np.array(self.weights) * np.array(self.shared), features(x)
        alike = likeness(self.prior, own, np.array(self.features)) @ weights
        shift = self.prior.offset**2 * weights.sum() + self.prior.likeness**2 * alike
        return np.exp(np.where(self.is_here(keys), shift, 0.0))

    def is_here(self, keys: RowKeys) -> Array:
        return np.array([device == self.device for device in keys.device], dtype=np.bool_)

    def spread(self, x: Inputs, keys: RowKeys, shifts: Shifts) -> tuple[Array, Array]:
        """Standard deviation of each row's log time before the runs and after them; equal on other
        devices."""
        points = points_of(x, keys, shifts)
        noise, before = noises(self.prior, points), variances(self.prior, points)
        if not self.weights:
            return np.sqrt(before + noise), np.sqrt(before + noise)
        cross = covariance(self.prior, points, self.points)
        known = np.einsum("ij,jk,ik->i", cross, np.array(self.inverse), cross)
        after = np.where(self.is_here(keys), np.maximum(before - known, 0.0), before)
        return np.sqrt(before + noise), np.sqrt(after + noise)
