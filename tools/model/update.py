"""The cost model of one cluster, from a handful of its own runs: a posterior of the common offset, of what
alike runs share and of what a measured plan has alone.

Runs that others report have long tails (Student's t). Constants are held fixed unless runs show their terms
(a profile, a probe) or leaving runs out speaks for moving them by a clear margin; from two runs on the whole
update is weighed against none by leaving runs out. No cluster is too far off: the farther, the wider.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tools.model.calibration import Calibration, shipped_calibration
from tools.model.cluster import (
    PRIOR_RUNS,
    ClusterModel,
    ClusterPrior,
    Points,
    constant_spread,
    covariance,
    log_bounds,
    same_plan,
)
from tools.model.cluster_findings import ClusterFinding
from tools.model.constants import constant_priors
from tools.model.intervals import COVERAGE
from tools.model.observations import Observations, learn_memory, with_seen
from tools.model.predict import Prediction, predict
from tools.model.runs import Run
from tools.model.student import student_limit
from tools.physics.encode import scenario_device
from tools.physics.inputs import Array

MAX_DEVIATION = 3.0
"""Standard deviations from what the other runs and the prior allow: beyond, a run is left out."""
MAX_RUN_FACTOR = 1.8
"""Between a run and what the others predict: a run is left out beyond this too, and only then."""
MIN_RUNS = 3
"""The fewest runs of which one may be left out: of two that differ nobody knows which."""
MAX_FACTOR = 30.0
"""Between a measured and a predicted step: beyond, another unit or another job was measured."""
DEGREES_OF_FREEDOM = 3.0
"""Degrees of freedom of Student's t for runs that others report: another day, release or node."""
REPEAT, OWN_REPEAT = 0.04, 0.01
"""Deviation of the log time of one plan run again, beside its steps' own noise: as others report it (true
repeats of dense plans differ by 2% in the median, the same plan in two releases by 6%: runs/), and within one
session of ASAP."""
MAX_LOSS = 0.3
"""The most that a run's log error counts when runs are left out."""
SHARE, CREDIT = 0.25, 0.4
"""The update is believed whole if it takes this share off the errors of runs left out, and not at all if it
makes their sum larger by CREDIT, in log time. Chosen while looking at the clusters of `benchmarks.calibrate`,
like the next two and REPEAT."""
FIRST_TRUST = 0.7
"""Share of the update that one plan alone is worth for others; ASAP's own is worth all. Beyond MAX_RUN_FACTOR
it falls with the square: the plan is slow and not the cluster, until a second plan shows otherwise."""
CLEAR_MARGIN = 0.6
"""Constants move if that takes the errors of runs left out below this share."""
FARTHER = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""How many times as far as usual a cluster's offset may lie."""
ROUNDS = 4
TAIL_ROUNDS = 20
Rows = NDArray[np.intp]
Outlier = tuple[int, float]
"""The place of a run that is left out, and the factor between it and what the other runs allow."""


@dataclass(frozen=True)
class LeftOut:
    """A run that nothing was learned from, and why."""

    number: int
    id: str
    why: str


@dataclass(frozen=True)
class CheckedRun:
    """A run beside its prediction without any run, and with all others but itself."""

    number: int
    id: str
    measured_s: float
    before_s: float
    after_s: float


@dataclass(frozen=True)
class MovedConstant:
    """A constant that the runs moved by a hundredth at least."""

    name: str
    before: float
    after: float
    meaning: str


@dataclass(frozen=True)
class Calibrated:
    """The calibration, and what a report shows of it."""

    calibration: Calibration
    runs: int
    checked: tuple[CheckedRun, ...]
    left_out: tuple[LeftOut, ...]
    constants: tuple[MovedConstant, ...]
    offset: float
    """Common factor less one, beside the constants."""

    @property
    def findings(self) -> tuple[ClusterFinding, ...]:
        """What is odd about the runs, the gravest first."""
        return self.calibration.cluster.findings if self.calibration.cluster else ()

    @property
    def error_before(self) -> float:
        return float(np.mean([abs(run.before_s / run.measured_s - 1.0) for run in self.checked] or [0.0]))

    @property
    def error_after(self) -> float:
        """With each run left out in turn."""
        return float(np.mean([abs(run.after_s / run.measured_s - 1.0) for run in self.checked] or [0.0]))

    @property
    def label(self) -> str:
        """12 runs, ±4.1%."""
        runs = f"{self.runs} run{'' if self.runs == 1 else 's'}"
        return f"{runs}, ±{self.error_after:.1%}" if len(self.checked) > 1 else runs


def calibrate(
    reported: Sequence[Run], base: Calibration | None = None, name: str = "", own: Sequence[Run] = ()
) -> Calibrated:
    """`base` is the shipped calibration when None. `own` runs were measured by ASAP itself, in one go, so
    that one far from its prediction is believed; they are counted after those `reported`."""
    base = replace(base or shipped_calibration(), cluster=None, seen=None)
    runs = [*reported, *own]
    if not runs:
        return Calibrated(base, 0, (), (), (), 0.0)
    device = Counter(run.scenario.cluster.device for run in runs).most_common(1)[0][0]
    predicted = [i for i, run in enumerate(runs) if run.scenario.plan]
    predictions = dict(zip(predicted, predict([runs[i].scenario for i in predicted], base), strict=True))
    left_out, usable, elsewhere = [], [], []
    for i, run in enumerate(runs):
        why = _why_impossible(run, predictions[i], i >= len(reported)) if i in predictions else None
        if why is None and (other := run.scenario.cluster.device) != device:
            why = f"measured on {other}, the others on {device}: only its own plan is predicted by it"
            elsewhere.append(run)
        if why:
            left_out.append(LeftOut(i, run.title, why))
        else:
            usable.append(i)
    memory = learn_memory([runs[i] for i in usable], base.memory_error)
    left_out += [LeftOut(usable[i], runs[usable[i]].title, why) for i, why in memory.left_out]
    timed = [i for i in usable if runs[i].measured.step_time_s or runs[i].measured.constants]
    empty = ClusterModel(name, device, base.cluster_prior, REPEAT, memory.shift, memory.error)
    if not timed:
        known = with_seen(replace(base, cluster=empty), [*(runs[i] for i in usable), *elsewhere])
        return Calibrated(known, len(usable), (), tuple(left_out), (), 0.0)
    repeats = [OWN_REPEAT if i >= len(reported) else REPEAT for i in timed]
    data = Observations([runs[i] for i in timed], base, repeats)
    is_own = np.array([timed[row] >= len(reported) for row in data.row_of], dtype=np.bool_)
    fitted, outliers = _choose(data, base.cluster_prior, is_own)
    doubted = {timed[place]: factor for place, factor in outliers}
    used = [i for i in usable if i not in doubted]
    off = "{:.2f} times off what the other runs allow: only its own plan is predicted by it"
    left_out += [LeftOut(i, runs[i].title, off.format(factor)) for i, factor in doubted.items()]
    kept, prior = fitted.kept, fitted.prior
    repeat, trust = fitted.repeat(min(repeats)), fitted.trust
    cluster = replace(
        empty,
        runs=len(used),
        repeat=repeat,
        unsure=math.sqrt(max(repeat**2 - REPEAT**2, 0.0)),
        prior=prior,
        slopes=fitted.points.slopes.tolist(),
        features=fitted.points.features.tolist(),
        shared=fitted.points.shared.tolist(),
        weights=fitted.weights.tolist(),
        inverse=fitted.inverse.tolist(),
        trust=trust,
        scatter=fitted.scatter,
        quantile=student_limit((1.0 - COVERAGE) / 2.0, PRIOR_RUNS + len(kept)),
    )
    shifts = {name: {level: dict(k) for level, k in levels.items()} for name, levels in base.shifts.items()}
    constants = []
    for d, start, move in zip(constant_priors(), data.start, trust * fitted.moves, strict=True):
        if move:
            shifted = shifts.setdefault(d.name, {}).setdefault("device", {})
            shifted[device] = shifted.get(device, 0.0) + float(move)
        if abs(move) >= 0.01:
            constants.append(
                MovedConstant(d.name, float(np.exp(start)), float(np.exp(start + move)), d.meaning)
            )
    checked = []
    # with each left out in turn (Rasmussen and Williams, equation 5.12)
    plans = Counter(fitted.points.plan.tolist())
    left_out_logs = fitted.weights / np.diag(fitted.inverse)
    for place, before, left, plan in zip(kept, fitted.before, left_out_logs, fitted.points.plan, strict=True):
        if data.is_step[place]:
            number = timed[data.row_of[place]]
            measured_s = float(runs[number].measured.step_time_s or 0.0)
            # the whole of the update leaves `left`, none of it `before`; another run of the plan is believed
            after = left if plans[plan] > 1 else trust * left + (1.0 - trust) * before
            before_s, after_s = (measured_s * float(np.exp(-log)) for log in (before, after))
            checked.append(CheckedRun(number, runs[number].title, measured_s, before_s, after_s))
    learned = Calibrated(
        replace(base, shifts=shifts, cluster=cluster),
        cluster.runs,
        tuple(checked),
        tuple(sorted(left_out, key=lambda run: run.number)),
        tuple(sorted(constants, key=lambda constant: -abs(np.log(constant.after / constant.before)))),
        float(np.expm1(trust * prior.offset**2 * fitted.weights @ fitted.points.shared)),
    )
    findings = data.findings([runs[i] for i in timed], kept)
    named = replace(cluster, label=learned.label, findings=findings)
    doubts = [*(math.log(doubted.get(i, 1.0)) for i in usable), *(0.0 for _ in elsewhere)]
    seen = [*(runs[i] for i in usable), *elsewhere]
    known = with_seen(replace(learned.calibration, cluster=named), seen, doubts)
    return replace(learned, calibration=known)


def _why_impossible(run: Run, prediction: Prediction, own: bool) -> str | None:
    """Another unit, faster than the device computes, more memory than it has."""
    step_s, peak = run.measured.step_time_s, run.measured.peak_memory_gib
    if step_s is not None:
        used = prediction.mfu * prediction.step_time_s / step_s
        if used > 1.0:
            return f"a step of {step_s:.3g} s would need {used:.2g} times the device's peak"
        factor = max(step_s / prediction.step_time_s, prediction.step_time_s / step_s)
        if factor > MAX_FACTOR and not own:
            return (
                f"{step_s:.3g} s is {factor:.3g} times off the predicted {prediction.step_time_s:.3g} s: "
                "seconds per step are meant"
            )
    capacity = scenario_device(run.scenario.cluster).memory_bytes / 2**30
    if peak is not None and peak > capacity * 1.02:
        return f"a peak of {peak:.4g} GiB is more than the device's {capacity:.4g} GiB"
    return None


@dataclass(frozen=True)
class _Fit:
    prior: ClusterPrior
    kept: Rows
    """Observations that it is of."""
    is_step: NDArray[np.bool_]
    is_own: NDArray[np.bool_]
    """Measured by ASAP itself."""
    before: Array
    """Log of measured over predicted at the constants as they were."""
    moves: Array
    """Change of each constant's logarithm."""
    errors: Array
    """As `before`, but for the moves' curvature."""
    points: Points
    noise: Array
    tails: Array
    """By how much what each has alone varies more than expected."""
    inverse: Array

    @classmethod
    def of(cls, data: Observations, kept: Rows, prior: ClusterPrior, is_own: NDArray[np.bool_]) -> "_Fit":
        spread = (prior.constants * constant_spread()) ** 2
        low, high = log_bounds()
        moves = np.zeros(len(spread))
        before, points = data.observe(moves)
        before, points, plain = before[kept], points.take(kept), data.noise[kept] ** 2 + 1e-8
        prior = _far_off(prior, points, plain, before)
        for _ in range(ROUNDS if prior.constants else 1):
            errors, points = data.observe(moves)
            errors, points = errors[kept], points.take(kept)
            errors = errors + points.slopes @ moves  # log of measured over predicted at the start
            tails = _tails(prior, points, plain, errors, is_own[kept])
            points, noise = replace(points, own=points.own * np.sqrt(tails)), plain * tails
            matrix = covariance(prior, points, points) + same_plan(points, points) + np.diag(noise)
            inverse: Array = np.linalg.inv(matrix).astype(np.float64)
            wanted = spread * (points.slopes.T @ (inverse @ errors))
            wanted = np.clip(wanted, low[:, 0] - data.start, high[:, 0] - data.start)
            if np.abs(wanted - moves).max() < 1e-4:
                break
            moves = wanted
        is_step, is_own = data.is_step[kept], is_own[kept]
        return cls(prior, kept, is_step, is_own, before, moves, errors, points, noise, tails, inverse)

    @property
    def weights(self) -> Array:
        return self.inverse @ self.errors

    @cached_property
    def _left_out(self) -> tuple[Array, Array]:
        """Log error of each and its variance with all plans but its own known (Rasmussen and Williams,
        equation 5.12, for the runs of a plan together)."""
        variances = 1.0 / np.diag(self.inverse)
        errors = self.weights * variances
        for plan in set(self.points.plan[self.is_step].tolist()):
            rows = np.flatnonzero(self.is_step & (self.points.plan == plan))
            known = np.linalg.inv(self.inverse[np.ix_(rows, rows)])
            errors[rows], variances[rows] = known @ self.weights[rows], np.diag(known)
        return errors, variances

    @property
    def left_out(self) -> Array:
        return self._left_out[0]

    @property
    def deviations(self) -> Array:
        """How far off those in `left_out` are, in standard deviations that no tail has widened."""
        alone = self.points.own**2 + self.noise
        errors, variances = self._left_out
        return np.abs(errors) / np.sqrt(variances - alone * (1.0 - 1.0 / self.tails))

    def remaining(self, data: Observations) -> float:
        """Sum of the steps' errors that the update leaves."""
        fixed = replace(self.prior, constants=0.0)
        shared = covariance(fixed, self.points, self.points) + same_plan(self.points, self.points)
        errors = data.observe(self.moves)[0][self.kept] - shared @ self.weights
        return float(np.abs(errors[self.is_step]).sum())

    @property
    def loss(self) -> float:
        return float(np.minimum(np.abs(self.left_out[self.is_step]), MAX_LOSS).sum())

    @property
    def scatter(self) -> float:
        return float((PRIOR_RUNS + self.errors @ self.weights) / (PRIOR_RUNS + len(self.errors)))

    def repeat(self, usual: float) -> float:
        """Deviation of a plan from run to run, in log time: more than `usual` if its runs differ by more."""
        squares, freedom = PRIOR_RUNS * usual**2, PRIOR_RUNS
        for plan in set(self.points.plan[self.is_step].tolist()):
            logs = self.before[self.is_step & (self.points.plan == plan)]
            squares += float(np.sum((logs - logs.mean()) ** 2))
            freedom += len(logs) - 1
        return max(usual, math.sqrt(squares / freedom))

    @property
    def trust(self) -> float:
        """How much of the update to believe, by the runs left out in turn."""
        if len(set(self.points.plan[self.is_step].tolist())) < 2:
            if self.is_own.any() or not self.is_step.any():
                return 1.0
            off = max(float(np.abs(self.before[self.is_step]).max()), 1e-9)
            return FIRST_TRUST * min(1.0, math.log(MAX_RUN_FACTOR) / off) ** 2
        without = float(np.minimum(np.abs(self.before[self.is_step]), MAX_LOSS).sum())
        return float(np.clip((without - self.loss + CREDIT) / (SHARE * without + CREDIT), 0.0, 1.0))


def _far_off(prior: ClusterPrior, points: Points, noise: Array, errors: Array) -> ClusterPrior:
    """The prior with an offset as wide as makes the runs likeliest: clusters far from all others are rare,
    the more so the farther, and there are some."""

    def unlikely(factor: float) -> float:
        wider = replace(prior, offset=factor * prior.offset)
        matrix = covariance(wider, points, points) + same_plan(points, points) + np.diag(noise)
        ratio = errors @ np.linalg.solve(matrix, errors) / DEGREES_OF_FREEDOM
        tail = (DEGREES_OF_FREEDOM + len(errors)) * np.log1p(ratio)
        return float(tail + np.linalg.slogdet(matrix)[1] + 2.0 * np.log(factor))

    return replace(prior, offset=min(FARTHER, key=unlikely) * prior.offset)


def _tails(
    prior: ClusterPrior, points: Points, noise: Array, errors: Array, is_own: NDArray[np.bool_]
) -> Array:
    """By how much the variance of what each plan has alone is larger than expected, if that is Student's t,
    as it is for plans that only others report: expectation maximisation that starts from the median, so that
    one run does not move the others."""
    common = covariance(prior, points, points)
    same = same_plan(points, points) > 0
    expected = points.own**2 + noise
    centre, variance = np.full(len(errors), np.median(errors)), np.zeros(len(errors))
    tails = np.ones(len(errors))
    has_tail = (points.own > 0) & ~is_own & ~(same & is_own).any(axis=1)
    if not has_tail.any():
        return tails
    for _ in range(TAIL_ROUNDS):
        squares = ((errors - centre) ** 2 + variance) / expected
        found = (DEGREES_OF_FREEDOM + squares) / (DEGREES_OF_FREEDOM + 1.0)
        # runs of one plan share what it has alone; a term or a constant has no plan
        found = np.where(has_tail, (same @ found) / np.maximum(same.sum(axis=1), 1), 1.0)
        if np.allclose(found, tails, rtol=1e-3):
            break
        tails = found
        alone = np.sqrt(np.outer(tails, tails)) * same_plan(points, points)
        inverse = np.linalg.inv(common + alone + np.diag(noise * tails))
        centre = common @ (inverse @ errors)
        known = np.einsum("ij,jk,ik->i", common, inverse, common)
        variance = np.maximum(np.diag(common) - known, 0.0)
    return tails


def _choose(data: Observations, prior: ClusterPrior, is_own: NDArray[np.bool_]) -> tuple[_Fit, list[Outlier]]:
    """What the runs say, and which of those that others report are left out: as long as fewer than half are,
    the one that the rest explain least."""
    fixed = replace(prior, constants=0.0)
    outliers: list[Outlier] = []
    row_of, kept = np.array(data.row_of), np.arange(len(data.noise))
    steps = int(data.is_step.sum())
    fitted = _Fit.of(data, kept, fixed, is_own)
    while steps >= MIN_RUNS and 2 * (len(outliers) + 1) < steps:
        worst = int(np.argmax(np.abs(fitted.left_out) * (fitted.is_step & ~fitted.is_own)))
        factor = float(np.exp(np.abs(fitted.left_out[worst])))
        is_usual = factor < MAX_RUN_FACTOR or fitted.deviations[worst] < MAX_DEVIATION
        if is_usual or fitted.is_own[worst] or not fitted.is_step[worst]:
            break
        run = int(row_of[kept[worst]])
        outliers.append((run, factor))
        kept = kept[row_of[kept] != run]
        fitted = _Fit.of(data, kept, fixed, is_own)
    shows_terms = not fitted.is_step.all()
    if shows_terms or steps > MIN_RUNS:
        moved = _Fit.of(data, kept, prior, is_own)
        is_better = moved.loss <= CLEAR_MARGIN * fitted.loss
        if shows_terms:
            is_better = moved.remaining(data) <= float(np.abs(fitted.before[fitted.is_step]).sum())
        if is_better:
            return moved, outliers
    if shows_terms:  # terms that contradict their own steps
        fitted = _Fit.of(data, kept[fitted.is_step], fixed, is_own)
    return fitted, outliers
