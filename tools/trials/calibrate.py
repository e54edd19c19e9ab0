"""The cost model calibrated on measured plans of one cluster: few constants moved from their priors.

Maximum a posteriori, with the robust loss of the published fit. Imports SciPy: load it lazily.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from tools.cost.calibration import (
    RANGED,
    Calibration,
    IntervalModel,
    calibrated_to,
    kind_names,
    known_to,
    novelty,
    robust,
    shipped_calibration,
    shrunk,
)
from tools.cost.constants import Coefficients, RowKeys, definitions, resolve
from tools.cost.encode import encode_plans
from tools.cost.inputs import Array, Inputs
from tools.cost.memory import memory_settings
from tools.cost.predict import resolve_recompute
from tools.cost.step import Breakdown, step_breakdown
from tools.errors import InputError
from tools.scenario import Plan, Scenario, columns_of
from tools.trace.alignment import align
from tools.trace.folder import profile_folder
from tools.trace.terms import measure_terms
from tools.trials.order import MeasuredPlan


def learned_intervals(
    model: IntervalModel, x: Inputs, keys: RowKeys, left_out_errors: Array
) -> IntervalModel:
    """`left_out_errors` are log errors of trials that the others predicted; empty for a single trial."""
    near = replace(model, ranges={name: _widen(model.ranges[name], getattr(x, name)) for name in RANGED})
    if not len(left_out_errors):
        return near
    label = f"{keys.key('stack', 0)}|{kind_names(x)[0]}"
    error = shrunk(left_out_errors, _usual_error(model, keys, label))
    return replace(
        near,
        frameworks=_with(model.frameworks, keys.framework[0]),
        generations=_with(model.generations, keys.generation[0]),
        stacks=_with(model.stacks, keys.key("stack", 0)),
        stack_error={**model.stack_error, label: error},
    )


def _usual_error(model: IntervalModel, keys: RowKeys, label: str) -> float:
    """Of this stack, or of all; as much larger for one that was never measured as its interval is wider."""
    measured = known_to(model)
    level = str(novelty(keys, 0, measured))
    usual = model.usual_error[label.rsplit("|", 1)[1]]
    (low, high), (known_low, known_high) = model.quantiles[level], model.quantiles["0"]
    return model.stack_error.get(label, usual) * (high - low) / (known_high - known_low)


def _with(names: Sequence[str], name: str) -> list[str]:
    return sorted({*names, name})


def _widen(span: Sequence[float], values: Array) -> list[float]:
    low, high = span
    return [min(low, float(np.min(values))), max(high, float(np.max(values)))]


def read_terms(traces: Path, plan: Plan) -> dict[str, float] | None:
    """Seconds per step; nothing if no trace shows a whole step or traces cannot be read."""
    try:
        profiles = [rank for rank in profile_folder(traces).ranks if rank.breakdown.total_ns]
    except InputError:  # nothing to read there
        return None
    measured = measure_terms(profiles, align(profiles), plan) if profiles else None
    return measured.terms_s if measured and measured.num_steps else None


STEP_SPREAD = 0.02
"""What repeats of a quiet trial differ by, in log time; noisier trials count less."""
TERM_SPREAD = 0.1
"""A standard deviation: profiled steps are slower than plain ones, and rules tell their terms apart."""
STEP_WEIGHTS = (1.0, 10.0, 100.0)
MIN_SHARE = 0.003
"""Terms below this share of the step are indistinguishable from zero."""
MIXED_TERMS: Mapping[str, tuple[str, ...]] = {
    "compute": ("compute", "recompute"),
    "pipeline": ("pp_comm_exposed", "pipeline_bubble"),
}
"""Terms that a trace shows as one."""
UNMEASURED = 2.0
"""The constants of a stack that `base` has not seen may lie so much farther off."""
MOVABLE = (
    *("gemm_efficiency", "attention_efficiency", "grouped_gemm_ratio"),
    *("elementwise_traffic", "optimizer_traffic"),
    *("fast_link_efficiency", "slow_link_efficiency", "rank_latency_s"),
    *("tp_exposed", "cp_exposed", "ep_exposed", "pp_exposed", "dp_exposed"),
    *("host_kernel_s", "micro_batch_overhead_s", "step_overhead_s", "scale_jitter"),
)
"""Rates and overheads. What shapes a curve (tiles, depths, narrow formats) few trials cannot tell."""
MIN_EFFECT = 1e-4
"""On log time: a constant that moves it less is left where it is."""
NUDGE = 1e-5
UNMEASURED_TERMS = ("host_and_other", "other_comm_exposed")


def calibrate(
    scenario: Scenario, measured: Sequence[MeasuredPlan], base: Calibration | None = None
) -> Calibration:
    """`base` (the shipped calibration when None) with what trials of this scenario say; none say nothing."""
    base = base or shipped_calibration()
    if not measured:
        return base
    trials = _Trials(scenario, measured)
    fitted = _fit(trials, base)
    intervals = learned_intervals(base.intervals, trials.x, trials.keys, fitted.left_out_errors)
    return replace(calibrated_to(base, trials.keys, fitted.constants), intervals=intervals)


@dataclass(frozen=True)
class _Lever:
    """A constant that may be moved, in units of its prior's standard deviation."""

    name: str
    value: float
    spread: float
    bounds: tuple[float, float]


class _Trials:
    """The measured plans as the cost model's arrays, and what is wrong with their predictions."""

    def __init__(self, scenario: Scenario, measured: Sequence[MeasuredPlan]) -> None:
        x, self.keys = encode_plans(scenario, columns_of([trial.plan for trial in measured]))
        self.x = resolve_recompute(x, memory_settings(self.keys.framework, [scenario.training.precision]))
        self.step_s = np.array([trial.step_time_s for trial in measured])
        self.spread = np.hypot(STEP_SPREAD, [trial.noise for trial in measured])
        stated = [(row, *term) for row, trial in enumerate(measured) for term in (trial.terms or {}).items()]
        self.terms = [(row, name, seconds) for row, name, seconds in stated if name not in UNMEASURED_TERMS]

    def errors(self, start: Coefficients, levers: list[_Lever], shifts: Array) -> tuple[Array, Array]:
        """Logarithms of predicted over measured, of steps and of terms, for each row of shifts at once."""
        sets, trials = len(shifts), len(self.step_s)
        x = self.x.take(np.tile(np.arange(trials), sets))
        breakdown = step_breakdown(x, _apply_shifts(start, levers, np.repeat(shifts, trials, axis=0)))
        step = np.log(np.broadcast_to(breakdown.total, sets * trials).reshape(sets, trials) / self.step_s)
        return step, np.array([self._term_errors(breakdown, sets, *term) for term in self.terms]).T.reshape(
            sets, -1
        )

    def _term_errors(self, breakdown: Breakdown, sets: int, row: int, name: str, seconds: float) -> Array:
        parts = sum((getattr(breakdown, part) for part in MIXED_TERMS.get(name, (name,))), np.zeros(()))
        predicted_s = np.broadcast_to(parts, sets * len(self.step_s)).reshape(sets, -1)[:, row]
        least_s = MIN_SHARE * self.step_s[row]
        return np.asarray(np.log((predicted_s + least_s) / (seconds + least_s)))


@dataclass(frozen=True)
class _Fitted:
    constants: dict[str, float]
    left_out_errors: Array
    """Of each trial's step time, in logarithms, as the others predict it; empty for a single trial."""


def _fit(trials: _Trials, base: Calibration) -> _Fitted:
    """The constants that explain the trials best. Steps are never explained worse than before: where terms
    would have it so, steps count more, and in the end alone."""
    start = resolve(trials.keys, base.shifts)
    levers = _levers(trials, start, base)
    before = np.abs(trials.errors(start, [], np.zeros((1, 0)))[0]).sum()
    for weight in (*STEP_WEIGHTS, None):
        fitted = _solve(trials, start, levers, weight)
        errors = trials.errors(start, levers, fitted.x[None, :])[0][0]
        if np.abs(errors).sum() <= before:
            break
    moved = _apply_shifts(start, levers, fitted.x)
    return _Fitted(
        {lever.name: float(getattr(moved, lever.name)) for lever in levers},
        _left_out_errors(errors, fitted) if len(errors) > 1 else np.zeros(0),
    )


def _levers(trials: _Trials, start: Coefficients, base: Calibration) -> list[_Lever]:
    """The constants that these trials depend on. Levels of a spread are independent: variances add up."""
    wider = 1.0 if trials.keys.key("stack", 0) in base.intervals.stacks else UNMEASURED
    levers = [
        _Lever(
            definition.name,
            float(getattr(start, definition.name)),
            wider * float(np.linalg.norm([*definition.spread.values()])),
            (definition.low, definition.high),
        )
        for definition in definitions()
        if definition.name in MOVABLE
    ]
    low, high = (trials.errors(start, levers, sign * np.eye(len(levers)))[0] for sign in (-1.0, 1.0))
    matters = np.abs(high - low).max(axis=1) > MIN_EFFECT
    return [lever for lever, moves in zip(levers, matters, strict=True) if lever.value > 0 and moves]


def _solve(
    trials: _Trials, start: Coefficients, levers: list[_Lever], step_weight: float | None
) -> OptimizeResult:
    """Residuals of steps, of terms (none without a weight), and of the constants from their priors."""
    sure = trials.spread / (step_weight or 1.0)

    def residuals(shifts: Array) -> Array:
        steps, terms = trials.errors(start, levers, shifts)
        terms = robust(terms / TERM_SPREAD)[0] if step_weight else terms[:, :0]
        return np.concatenate([steps / sure, terms, shifts], axis=1)

    def jacobian(shifts: Array) -> Array:
        nudged = residuals(np.concatenate([shifts[None, :], shifts + NUDGE * np.eye(len(shifts))]))
        return np.asarray((nudged[1:] - nudged[0]).T / NUDGE)

    def residuals_of_one(shifts: Array) -> Array:
        return np.asarray(residuals(shifts[None, :])[0])

    start_at = np.zeros(len(levers))
    return least_squares(
        residuals_of_one, start_at, jac=jacobian, method="trf", max_nfev=40, ftol=1e-6, xtol=1e-6
    )


def _apply_shifts(start: Coefficients, levers: list[_Lever], shifts: Array) -> Coefficients:
    """One set of shifts, or one a row."""
    moved = {
        lever.name: np.clip(lever.value * np.exp(lever.spread * shifts[..., i]), *lever.bounds)
        for i, lever in enumerate(levers)
    }
    return replace(start, **moved)


def _left_out_errors(errors: Array, fitted: OptimizeResult) -> Array:
    """What each trial's error would be had it not been fitted, from the leverages of the fit.

    Source: Allen, The Relationship between Variable Selection and Data Augmentation (1974), PRESS."""
    jacobian = np.asarray(fitted.jac)
    covariance = np.linalg.inv(jacobian.T @ jacobian)
    rows = jacobian[: len(errors)]
    leverage = np.einsum("ij,jk,ik->i", rows, covariance, rows)
    return np.asarray(errors / np.maximum(1.0 - leverage, 1e-6))
