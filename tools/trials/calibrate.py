"""The cost model as measured plans of one cluster make it: few constants moved from where they were.

Maximum a posteriori, as `tools.fit` does it for all clusters: each constant's prior is what `base` says of
this stack, as wide as the constant's spreads; residuals are logarithms of predicted over measured step time
and, where a profile told them, of single terms. A profile's `host_and_other` is what is left of the step,
with waiting for late ranks in it, so the step alone says it. The constants are written for this stack and
device only; intervals narrow by how well each trial is predicted from the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.cluster import calibrated_to
from tools.cost.coefficients import Coefficients, definitions, resolve
from tools.cost.encode import encode_plans
from tools.cost.evaluate import resolve_recompute
from tools.cost.inputs import Array
from tools.cost.memory_settings import memory_settings
from tools.cost.step import Breakdown, step_breakdown
from tools.fit.calibrate import robust
from tools.scenario import Scenario, columns_of
from tools.trials.intervals import learned_intervals
from tools.trials.measured_plan import MeasuredPlan

STEP_SPREAD = 0.02
"""What repeats of a quiet trial differ by, in log time; noisier trials count less."""
TERM_SPREAD = 0.1
"""A standard deviation: profiled steps are slower than plain ones, and rules tell their terms apart."""
STEP_WEIGHTS = (1.0, 10.0, 100.0)
LEAST_SHARE = 0.003
"""Of the step: terms below it are not told from nothing."""
MIXED_TERMS: Mapping[str, tuple[str, ...]] = {"pipeline": ("pp_comm_exposed", "pipeline_bubble")}
"""Terms that a trace shows as one."""
UNMEASURED = 2.0
"""The constants of a stack that `base` has not seen may lie so much farther off."""
MOVABLE = (
    *("gemm_efficiency", "attention_efficiency", "grouped_gemm_ratio"),
    *("elementwise_traffic", "loss_traffic", "routing_traffic", "optimizer_traffic"),
    *("fast_link_efficiency", "slow_link_efficiency", "rank_latency_s"),
    *("tp_exposed", "cp_exposed", "ep_exposed", "pp_exposed", "dp_exposed"),
    *("host_kernel_s", "micro_batch_overhead_s", "step_overhead_s", "scale_jitter"),
)
"""Rates and overheads. What shapes a curve (tiles, depths, narrow formats) few trials cannot tell."""
LEAST_EFFECT = 1e-4
"""On log time: a constant that moves it less is left where it is."""
UNTOLD = ("host_and_other", "other_comm_exposed")


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


class _Trials:
    """The measured plans as the cost model's arrays."""

    def __init__(self, scenario: Scenario, measured: Sequence[MeasuredPlan]) -> None:
        x, self.keys = encode_plans(scenario, columns_of([one.plan for one in measured]))
        self.x = resolve_recompute(x, memory_settings(self.keys.framework, [scenario.training.precision]))
        self.log_step_s = np.log([one.step_time_s for one in measured])
        self.spread = np.hypot(STEP_SPREAD, [one.noise for one in measured])
        self.terms = [one.terms or {} for one in measured]

    def step_error(self, c: Coefficients) -> Array:
        """Logarithms of predicted over measured."""
        total = np.broadcast_to(step_breakdown(self.x, c).total, self.log_step_s.shape)
        return np.asarray(np.log(total) - self.log_step_s)

    def term_errors(self, c: Coefficients) -> Array:
        breakdown = step_breakdown(self.x, c)
        return np.array(
            [
                self._term_error(breakdown, row, name, seconds)
                for row, terms in enumerate(self.terms)
                for name, seconds in terms.items()
                if name not in UNTOLD
            ]
        )

    def _term_error(self, breakdown: Breakdown, row: int, name: str, seconds: float) -> float:
        parts = (getattr(breakdown, part) for part in MIXED_TERMS.get(name, (name,)))
        predicted_s = sum(float(part[row] if np.ndim(part) else part) for part in parts)
        least_s = LEAST_SHARE * float(np.exp(self.log_step_s[row]))
        return float(np.log((predicted_s + least_s) / (seconds + least_s)))


@dataclass(frozen=True)
class _Lever:
    """A constant that may be moved, in units of its prior's standard deviation."""

    name: str
    value: float
    spread: float
    bounds: tuple[float, float]


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
    before = np.abs(trials.step_error(start)).sum()
    for weight in (*STEP_WEIGHTS, None):
        fitted = _solve(trials, start, levers, weight)
        if np.abs(trials.step_error(_moved(start, levers, fitted.x))).sum() <= before:
            break
    moved = _moved(start, levers, fitted.x)
    return _Fitted(
        {lever.name: float(getattr(moved, lever.name)) for lever in levers},
        _left_out_errors(trials.step_error(moved), fitted) if len(trials.terms) > 1 else np.zeros(0),
    )


def _levers(trials: _Trials, start: Coefficients, base: Calibration) -> list[_Lever]:
    """The constants that these trials depend on. Levels of a spread are independent: variances add up."""
    wider = 1.0 if trials.keys.key("stack", 0) in base.intervals.stacks else UNMEASURED
    known = {one.name: one for one in definitions() if one.name in MOVABLE}
    found = [
        _Lever(
            name,
            float(getattr(start, name)),
            wider * float(np.linalg.norm([*one.spread.values()])),
            (one.low, one.high),
        )
        for name, one in known.items()
    ]
    return [lever for lever in found if lever.value > 0 and _matters(trials, start, lever)]


def _matters(trials: _Trials, start: Coefficients, lever: _Lever) -> bool:
    low, high = (trials.step_error(_moved(start, [lever], np.array([shift]))) for shift in (-1.0, 1.0))
    return bool(np.any(np.abs(high - low) > LEAST_EFFECT))


def _solve(
    trials: _Trials, start: Coefficients, levers: list[_Lever], step_weight: float | None
) -> OptimizeResult:
    """Residuals of steps, of terms (none without a weight), and of the constants from their priors."""
    sure = trials.spread / (step_weight or 1.0)

    def residuals(shifts: Array) -> Array:
        c = _moved(start, levers, shifts)
        steps = trials.step_error(c) / sure
        terms = trials.term_errors(c) / TERM_SPREAD if step_weight else np.zeros(0)
        return np.concatenate([steps, robust(terms)[0], shifts])

    return least_squares(residuals, np.zeros(len(levers)), method="trf", max_nfev=40, ftol=1e-6, xtol=1e-6)


def _moved(start: Coefficients, levers: list[_Lever], shifts: Array) -> Coefficients:
    moved = {
        lever.name: np.clip(lever.value * np.exp(lever.spread * shift), *lever.bounds)
        for lever, shift in zip(levers, shifts, strict=True)
    }
    return replace(start, **moved)


def _left_out_errors(fitted_errors: Array, fitted: OptimizeResult) -> Array:
    """What each trial's error would be had it not been fitted, from the leverages of the fit.

    Source: Allen, The Relationship between Variable Selection and Data Augmentation (1974), PRESS."""
    jacobian = np.asarray(fitted.jac)
    covariance = np.linalg.inv(jacobian.T @ jacobian)
    rows = slice(0, len(fitted_errors))
    leverage = np.einsum("ij,jk,ik->i", jacobian[rows], covariance, jacobian[rows])
    return np.asarray(fitted_errors / np.maximum(1.0 - leverage, 1e-6))
