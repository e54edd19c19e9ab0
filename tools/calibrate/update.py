"""The cost model of one cluster, from a handful of its own runs: a Bayesian update of the constants, the
common offset and what alike runs share, by Gauss-Newton steps around the posterior mean.

One run moves what all runs share, more runs the terms that they tell apart, and never more than the prior
of `make fit` and the runs' noise allow. Runs that the others and the prior cannot explain are left out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tools.calibrate.observations import Observations, learn_memory
from tools.calibrate.runs import Run
from tools.cost.calibration import Calibration, known_to, novelty, shipped_calibration
from tools.cost.cluster import (
    ClusterModel,
    ClusterPrior,
    Points,
    constant_spread,
    covariance,
    likeness,
    log_bounds,
    noises,
)
from tools.cost.constants import RowKeys, Shifts, definitions
from tools.cost.encode import scenario_device
from tools.cost.inputs import Array
from tools.cost.predict import Prediction, predict

MAX_DEVIATION = 3.0
"""Standard deviations from what the other runs and the prior allow: beyond, a run is left out."""
MAX_RUN_FACTOR = 1.8
"""Between a run and what the others and the prior predict: beyond, it is left out however wide the prior."""
MAX_FACTOR = 10.0
"""Between a measured and a predicted step: beyond, another unit or another job was measured."""
WIDER = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
"""How much wider the prior may be made for a cluster that is unlike all others."""
MIN_AGREEING = 3
"""Runs that must agree before the prior is made wider for them; those that ASAP measured need no others."""
RUN_SCATTER = 0.1
"""What runs that others report have alone (another day, release or node), beside their steps' own noise: the
least at which three runs make no cluster of `make bench-calibrate` more than 5% worse. ASAP's own runs of one
session share all that."""
ROUNDS = 4
Rows = NDArray[np.intp]
Outlier = tuple[int, str]
"""The place of a run, and why it is left out."""


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
    def error_before(self) -> float:
        return _mean_error([(run.before_s, run.measured_s) for run in self.checked])

    @property
    def error_after(self) -> float:
        """With each run left out in turn."""
        return _mean_error([(run.after_s, run.measured_s) for run in self.checked])

    @property
    def says(self) -> str:
        """12 runs, ±4.1%."""
        runs = f"{self.runs} run{'' if self.runs == 1 else 's'}"
        return f"{runs}, ±{self.error_after:.1%}" if len(self.checked) > 1 else runs


def _mean_error(pairs: Sequence[tuple[float, float]]) -> float:
    return (
        float(np.mean([abs(predicted / measured - 1.0) for predicted, measured in pairs])) if pairs else 0.0
    )


def calibrate(
    runs: Sequence[Run], base: Calibration | None = None, name: str = "", own: bool = False
) -> Calibrated:
    """`base` is the shipped calibration when None. `own` runs were measured by ASAP itself, so that a first
    one far from its prediction is believed."""
    base = base or shipped_calibration()
    base = replace(base, cluster=None)
    if not runs:
        return Calibrated(base, 0, (), (), (), 0.0)
    device = Counter(run.scenario.cluster.device for run in runs).most_common(1)[0][0]
    left_out = [
        LeftOut(number, run.title, f"measured on {run.scenario.cluster.device}, the others on {device}")
        for number, run in enumerate(runs)
        if run.scenario.cluster.device != device
    ]
    here = [number for number, run in enumerate(runs) if run.scenario.cluster.device == device]
    refused, usable = _split_impossible(runs, here, base, own)
    left_out += refused
    memory = learn_memory([runs[i] for i in usable], base.memory_error)
    left_out += [LeftOut(usable[i], runs[usable[i]].title, why) for i, why in memory.left_out]
    timed = [i for i in usable if runs[i].measured.step_time_s or runs[i].measured.constants]
    empty = _empty(name, device, base, memory.shift, memory.error)
    if not timed:
        return Calibrated(replace(base, cluster=empty), len(usable), (), tuple(left_out), (), 0.0)
    data = Observations([runs[i] for i in timed], base, 0.0 if own else RUN_SCATTER)
    prior, kept, outliers = _choose_observations(data, base, own)
    left_out += [LeftOut(timed[i], runs[timed[i]].title, why) for i, why in outliers]
    fitted = _Fit.of(data, kept, prior)
    steps, unfitted = data.is_step[kept], data.observe(np.zeros(len(data.names)))[0][kept]
    if not steps.all() and fitted.remaining(data, kept, prior)[steps].sum() > np.abs(unfitted[steps]).sum():
        kept = kept[steps]  # terms that contradict their own steps
        fitted = _Fit.of(data, kept, prior)
    cluster = replace(
        empty,
        runs=len(usable) - len(outliers),
        prior=prior,
        slopes=fitted.points.slopes.tolist(),
        features=fitted.points.features.tolist(),
        shared=fitted.points.shared.tolist(),
        weights=fitted.weights.tolist(),
        inverse=fitted.inverse.tolist(),
    )
    calibration = replace(base, shifts=_add_shifts(base.shifts, device, fitted.moves), cluster=cluster)
    learned = Calibrated(
        calibration,
        cluster.runs,
        tuple(_check_runs(data, fitted, kept, [timed[i] for i in data.row_of], runs)),
        tuple(sorted(left_out, key=lambda run: run.number)),
        tuple(_moved_constants(data, fitted.moves)),
        float(np.expm1(prior.offset**2 * fitted.weights @ fitted.points.shared)),
    )
    named = replace(cluster, says=learned.says)
    return replace(learned, calibration=replace(calibration, cluster=named))


def _empty(name: str, device: str, base: Calibration, shift: float, error: float) -> ClusterModel:
    return ClusterModel(name, device, 0, base.cluster_prior, [], [], [], [], [], shift, error)


def _split_impossible(
    runs: Sequence[Run], here: Sequence[int], base: Calibration, own: bool
) -> tuple[list[LeftOut], list[int]]:
    """What cannot be: another unit, faster than the device computes, more memory than it has."""
    predictions = iter(predict([runs[i].scenario for i in here if runs[i].scenario.plan], base))
    refused, usable = [], []
    for i in here:
        prediction = next(predictions) if runs[i].scenario.plan else None
        why = _why_impossible(runs[i], prediction, own) if prediction else None
        if why:
            refused.append(LeftOut(i, runs[i].title, why))
        else:
            usable.append(i)
    return refused, usable


def _why_impossible(run: Run, prediction: Prediction, own: bool) -> str | None:
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
    moves: Array
    """Of each constant's logarithm."""
    points: Points
    errors: Array
    """What is to be explained around the last linearisation: log of measured over predicted at the start."""
    inverse: Array
    weights: Array

    @classmethod
    def of(cls, data: Observations, kept: Rows, prior: ClusterPrior) -> "_Fit":
        spread = (prior.constants * np.array(constant_spread())) ** 2
        low, high = log_bounds()
        moves = np.zeros(len(spread))
        for _ in range(ROUNDS):
            errors, points = data.observe(moves)
            errors, points = errors[kept], points.take(kept)
            errors = errors + points.slopes @ moves
            inverse: Array = np.linalg.inv(_with_noise(prior, points, data.noise[kept])).astype(np.float64)
            weights = inverse @ errors
            wanted = spread * (points.slopes.T @ weights)
            wanted = np.clip(wanted, low[:, 0] - data.start, high[:, 0] - data.start)
            if np.abs(wanted - moves).max() < 1e-4:
                break
            moves = wanted
        return cls(moves, points, errors, inverse, weights)

    def remaining(self, data: Observations, kept: Rows, prior: ClusterPrior) -> Array:
        """Size of each log error that the fit leaves."""
        errors, points = data.observe(self.moves)
        points = points.take(kept)
        alike = likeness(prior, points.features, points.features) @ (self.weights * points.shared)
        shared = prior.offset**2 * float(self.weights @ points.shared) + prior.likeness**2 * alike
        return np.abs(errors[kept] - shared * points.shared)

    def left_out_errors(self) -> Array:
        """Log of measured over predicted with each left out (Rasmussen and Williams, equation 5.12)."""
        return np.asarray(self.weights / np.diag(self.inverse))


def _with_noise(prior: ClusterPrior, points: Points, noise: Array) -> Array:
    return covariance(prior, points, points) + np.diag(noises(prior, points) + noise**2 + 1e-8)


def _choose_observations(
    data: Observations, base: Calibration, own: bool
) -> tuple[ClusterPrior, Rows, list[Outlier]]:
    """The prior to use, the observations to keep, and which runs are left out and why.

    If it refuses most runs and those agree, the cluster is unlike all others: the prior is made wider."""
    errors, points = data.observe(np.zeros(len(data.names)))
    # a stack that the fit has not seen may lie farther off, which is no reason to believe a wrong run
    max_factor = np.inf if own else MAX_RUN_FACTOR
    kept, outliers = _without_outliers(base.cluster_prior, errors, points, data, max_factor)
    prior = _widen(base.cluster_prior, _novelty_width(data.first_key, base))
    steps = int(data.is_step.sum())
    if outliers and (own or (2 * len(outliers) > steps >= MIN_AGREEING)):
        prior = _widen(prior, _likeliest_width(prior, errors, points, data.noise))
        kept, outliers = _without_outliers(prior, errors, points, data, max_factor)
    return prior, kept, outliers


def _novelty_width(keys: RowKeys, base: Calibration) -> float:
    """As much wider as the interval of such a stack is."""
    (low, high), level = base.intervals.quantiles["0"], novelty(keys, 0, known_to(base.intervals))
    new_low, new_high = base.intervals.quantiles[str(level)]
    return (new_high - new_low) / (high - low)


def _widen(prior: ClusterPrior, factor: float) -> ClusterPrior:
    return replace(
        prior,
        offset=prior.offset * factor,
        constants=prior.constants * factor,
        likeness=prior.likeness * factor,
    )


def _likeliest_width(prior: ClusterPrior, errors: Array, points: Points, noise: Array) -> float:
    def negative_log(factor: float) -> float:
        matrix = _with_noise(_widen(prior, factor), points, noise)
        return float(errors @ np.linalg.solve(matrix, errors) + np.linalg.slogdet(matrix)[1])

    return min(WIDER, key=negative_log)


def _without_outliers(
    prior: ClusterPrior, errors: Array, points: Points, data: Observations, max_factor: float
) -> tuple[Rows, list[Outlier]]:
    """Leaves out the run that the others explain least, until all are explained."""
    row_of, outliers = np.array(data.row_of), []
    kept = np.arange(len(errors))
    while len(kept):
        inverse = np.linalg.inv(_with_noise(prior, points.take(kept), data.noise[kept]))
        scale = np.sqrt(np.diag(inverse))
        left_out = np.abs(inverse @ errors[kept]) / np.diag(inverse)
        deviations = np.maximum(
            np.abs(inverse @ errors[kept]) / scale, MAX_DEVIATION * left_out / np.log(max_factor)
        )
        deviations *= data.is_step[kept]
        worst = int(np.argmax(deviations))
        if deviations[worst] <= MAX_DEVIATION:
            break
        run = int(row_of[kept[worst]])
        factor = np.exp(float(left_out[worst]))
        whose = "the other runs" if len(kept) > 1 else "the model"
        outliers.append((run, f"{factor:.2f} times off what {whose} and this cluster's likely spread allow"))
        kept = kept[row_of[kept] != run]
    return kept, outliers


def _add_shifts(shifts: Shifts, device: str, moves: Array) -> Shifts:
    table = {name: {level: dict(keys) for level, keys in levels.items()} for name, levels in shifts.items()}
    for definition, move in zip(definitions(), moves, strict=True):
        if move:
            keys = table.setdefault(definition.name, {}).setdefault("device", {})
            keys[device] = keys.get(device, 0.0) + float(move)
    return table


def _check_runs(
    data: Observations, fitted: _Fit, kept: Rows, numbers: Sequence[int], runs: Sequence[Run]
) -> list[CheckedRun]:
    """Each run that was learned from, as the others predict it."""
    before = data.observe(np.zeros(len(data.names)))[0]
    checked = []
    for place, error in zip(kept, fitted.left_out_errors(), strict=True):
        if data.is_step[place]:
            number = numbers[place]
            measured_s = float(runs[number].measured.step_time_s or 0.0)
            before_s = measured_s * float(np.exp(-before[place]))
            after_s = measured_s * float(np.exp(-error))
            checked.append(CheckedRun(number, runs[number].title, measured_s, before_s, after_s))
    return checked


def _moved_constants(data: Observations, moves: Array) -> list[MovedConstant]:
    """By how far, those that moved by a hundredth at least."""
    moved = [
        MovedConstant(d.name, float(np.exp(start)), float(np.exp(start + move)), d.meaning)
        for d, start, move in zip(definitions(), data.start, moves, strict=True)
        if abs(move) >= 0.01
    ]
    return sorted(moved, key=lambda constant: -abs(np.log(constant.after / constant.before)))
