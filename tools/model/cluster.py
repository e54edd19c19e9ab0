"""What runs of one cluster say about others of it: the cost model's error there as a Gaussian process.

A run's log error (measured over predicted) is the sum of the cluster's common offset, what alike runs share,
what a plan has alone (the same in each of its runs) and noise; and of the cluster's own values of the
constants, through their slopes, where runs show those. How far a new cluster may lie in each is the
between-source variance that `make fit` learned. Source of the form: Kennedy and O'Hagan, Bayesian calibration
of computer models (2001); of the spread by the runs' own scatter: Shah, Wilson and Ghahramani, Student-t
processes (2014).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np
from pydantic import Field

from tools.model.cluster_findings import ClusterFinding
from tools.model.constants import Shifts, constant_priors, resolve
from tools.model.intervals import SIGMAS
from tools.physics.inputs import Array, Coefficients, Columns, Inputs, RowKeys
from tools.physics.step import step_terms

FEATURES = (
    *("hidden", "layers", "seq", "batch", "devices", "micro_batch", "tp", "pp", "cp", "ep"),
    *("sharding", "moe", "precision", "dispatch"),
)
"""By which two runs are alike: doublings of sizes and degrees, the ZeRO stage, dense or not, bytes, whether
tokens go to their experts by a fused exchange."""
NUDGE = 1e-4
LARGE = 1e18
PRIOR_RUNS = 4.0
"""So many runs weigh as much as the prior in what says how far the runs of a cluster scatter."""
BLOCK_ROWS = 8192
Matrix = Sequence[Sequence[float]]


@dataclass(frozen=True)
class ClusterPrior:
    """Standard deviations of log time among clusters that the fit has not seen."""

    offset: float
    """The deviation that all runs of a cluster share."""
    constants: float
    """The deviation of the constants, over their spread in coefficients.toml; 0 holds them fixed."""
    likeness: float
    """The deviation that alike runs share."""
    own: float
    """The deviation that a plan has alone, over the spread of its prediction (intervals.py)."""
    lengths: Mapping[str, float]
    """Over which distance the likeness of two runs falls to 1/e, by feature."""


@dataclass(frozen=True)
class Points(Columns):
    """Runs or plans as the covariance sees them: a row each."""

    slopes: Array
    """Derivatives of log time by each constant's logarithm."""
    features: Array
    shared: Array
    """1 for a time, 0 for a constant measured by itself: no offset and no likeness touch that."""
    own: Array
    """Standard deviation of what the plan has alone."""
    plan: Array
    """Equal for runs of the same plan of the same job (`signatures`)."""


def features(x: Inputs) -> Array:
    """One row per plan, one column per name of FEATURES."""
    stage = np.where(x.dp_shard > 1, x.zero_stage, 0.0)
    sizes = [getattr(x, name) for name in FEATURES[:10]]
    columns = [*(np.log2(np.maximum(size, 1.0)) for size in sizes), stage, x.is_moe, np.log2(x.gemm_bytes)]
    columns.append(x.has_fused_dispatch)
    return np.stack([np.broadcast_to(column, (x.size,)) for column in columns], axis=1)


def signatures(x: Inputs) -> Array:
    """A number per row, the same for the same job and plan, recomputation resolved."""
    parts = (np.sqrt(2.0 + i) * np.log1p(np.minimum(np.abs(part), LARGE)) for i, part in enumerate(x.parts))
    return np.broadcast_to(np.round(sum(parts, np.zeros(1)), 9), (x.size,))


@cache
def constant_spread() -> Array:
    """Levels of a constant's spread are independent: variances add up."""
    return np.array([math.hypot(*d.spread.values()) for d in constant_priors()])


def log_bounds() -> tuple[Array, Array]:
    """Columns with one row per constant."""
    return np.log([[d.low] for d in constant_priors()]), np.log([[d.high] for d in constant_priors()])


def terms_s(x: Inputs, log_values: Array) -> Array:
    """Seconds: a row per term of the step, a column per plan; `log_values` has a row per constant."""
    names = [d.name for d in constant_priors()]
    constants = Coefficients(**dict(zip(names, np.exp(log_values), strict=True)))
    return np.array(step_terms(x, constants).broadcast(log_values.shape[1]).parts)


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
    return np.log([np.broadcast_to(getattr(values, d.name), (rows,)) for d in constant_priors()])


def points_of(prior: ClusterPrior, x: Inputs, keys: RowKeys, shifts: Shifts, spread: Array) -> Points:
    """Plans, with the slopes of their time at the constants as they are; `spread` is that of each prediction
    by itself."""
    slopes = np.zeros((len(constant_priors()), x.size))
    if prior.constants:
        _, slopes = with_slopes(nudged_terms_s(x, resolved_logs(keys, x.size, shifts)).sum(axis=0))
    own = np.broadcast_to(prior.own * spread, (x.size,))
    return Points(slopes.T, features(x), np.ones(x.size), own, np.zeros(x.size))


def covariance(prior: ClusterPrior, left: Points, right: Points) -> Array:
    """Between the log errors of two sets of runs, without what a plan has alone and noise."""
    common = prior.offset**2 + prior.likeness**2 * likeness(prior, left.features, right.features)
    common *= np.outer(left.shared, right.shared)
    if prior.constants:
        spread = prior.constants * constant_spread()
        common += (left.slopes * spread) @ (right.slopes * spread).T
    return common


def variances(prior: ClusterPrior, points: Points) -> Array:
    """The diagonal of `covariance` of points with themselves."""
    spread = prior.constants * constant_spread()
    shared = np.sum((points.slopes * spread) ** 2, axis=1)
    return np.asarray(shared + (prior.offset**2 + prior.likeness**2) * points.shared)


def same_plan(left: Points, right: Points) -> Array:
    """The covariance of what plans have alone."""
    same = np.equal.outer(left.plan, right.plan) & (np.outer(left.shared, right.shared) > 0)
    return np.where(same, np.outer(left.own, right.own), 0.0)


def likeness(prior: ClusterPrior, left: Array, right: Array) -> Array:
    """From 1 (the same) to 0, for each pair."""
    apart = np.zeros((len(left), len(right)))
    for column, name in enumerate(FEATURES):  # one at a time: a search asks for thousands of plans
        apart += np.abs(np.subtract.outer(left[:, column], right[:, column])) / prior.lengths[name]
    return np.exp(-apart)


@dataclass(frozen=True)
class ClusterModel:
    """The posterior of one cluster, small enough for a session's state."""

    name: str
    device: str
    prior: ClusterPrior
    """As used: with the constants held fixed unless the runs show them."""
    repeat: float
    """Standard deviation of a plan's log time from run to run, as runs of one plan here differ."""
    memory_shift: float
    """Logarithm of the peaks measured over those predicted, as far as the runs bear it out."""
    memory_error: float
    """Standard deviation of that logarithm for another run of the cluster."""
    runs: int = 0
    slopes: Matrix = ()
    features: Matrix = ()
    shared: Sequence[float] = ()
    weights: Sequence[float] = ()
    """How much each run counts in what is predicted for others."""
    inverse: Matrix = ()
    """Inverse of the runs' covariance, noise included."""
    trust: float = 1.0
    """Share of the update that leaving runs out bears out; the rest of the weight is on no update."""
    scatter: float = 1.0
    """Variance of the runs over the prior's: above 1 they lie farther off, or apart, than expected."""
    quantile: float = SIGMAS
    """Standard deviations to either side that hold 80%: of Student's t, the fewer the runs the more."""
    unsure: float = 0.0
    """The part of `repeat` beyond the usual: a run says less of another run of its own plan."""
    label: Annotated[str, Field(alias="says")] = ""
    """12 runs, ±4.1%."""
    version: int = 0
    """Version of the calibration in an installation; 0 if it is from a file."""
    findings: tuple[ClusterFinding, ...] = ()
    """What is odd about the runs, the gravest first."""

    @property
    def memory_factor(self) -> float:
        """On predicted peaks."""
        return math.exp(self.memory_shift)

    @property
    def title(self) -> str:
        """12 runs, ±4.1% of prod, version 3."""
        version = f", version {self.version}" if self.version else ""
        return f"{self.label} of {self.name or 'this cluster'}{version}" if self.label else ""

    @property
    def points(self) -> Points:
        none = np.zeros(len(self.shared))
        return Points(np.array(self.slopes), np.array(self.features), np.array(self.shared), none, none)

    def log_factor(self, x: Inputs, keys: RowKeys) -> Array:
        """On the step time of each row, beside what the constants' shifts do; 0 on other devices."""
        if not self.weights:
            return np.zeros(x.size)
        runs, weights = self.points, self.trust * np.array(self.weights) * np.array(self.shared)
        alike = likeness(self.prior, features(x), runs.features) @ weights
        shift = self.prior.offset**2 * weights.sum() + self.prior.likeness**2 * alike
        return np.where(self.is_here(keys), shift, 0.0)

    def is_here(self, keys: RowKeys) -> Array:
        return np.array([device == self.device for device in keys.device], dtype=np.bool_)

    def deviation(self, x: Inputs, keys: RowKeys, shifts: Shifts, spread: Array) -> Array:
        """Standard deviation of each row's log time after the runs; `spread`, that of the prediction by
        itself, on other devices and without a run."""
        if not self.weights:
            return np.broadcast_to(spread, (x.size,))
        runs, points = self.points, points_of(self.prior, x, keys, shifts, spread)
        cross = covariance(self.prior, points, runs)
        before = variances(self.prior, points)
        known = np.einsum("ij,jk,ik->i", cross, np.array(self.inverse), cross)
        left = before - self.trust * np.minimum(known, before) + points.own**2 + self.repeat**2
        # of two beliefs, the update and none, which differ by what the update adds
        apart = self.trust * (1.0 - self.trust) * (cross @ np.array(self.weights)) ** 2
        after = self.scatter * left + apart
        return np.where(self.is_here(keys), np.sqrt(after), spread)
