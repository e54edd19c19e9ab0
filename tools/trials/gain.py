"""Which plan to measure next, and when to stop: by the expected gain over the best measured.

Expected improvement (Jones, Schonlau and Welch, Efficient Global Optimization, 1998, equation 15) in log
time under the cluster's posterior, in which the errors of plans are correlated by their terms and by how
alike they are, times the probability that the plan runs at all. Trials stop once the best plan left is not
expected to gain more than can be measured.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tools.calibrate.observations import OTHER_CRASHES
from tools.calibrate.runs import PIPELINE, Measured, Run
from tools.cost.calibration import SIGMAS, Calibration, shipped_calibration
from tools.cost.cluster import features, likeness
from tools.cost.encode import encode
from tools.cost.inputs import Array
from tools.cost.memory import GIB
from tools.cost.predict import Batch, fit_probability, predict_rows
from tools.cost.terms import STEP_TERMS
from tools.recommend.workload import why_inexpressible
from tools.scenario import Plan, Scenario
from tools.search.ranked import Ranked
from tools.search.space import get_plan
from tools.trials.order import TrialFailure
from tools.trials.steering import OUT_OF_MEMORY

PRIOR_RUNS = 2.0
"""Alike runs that the usual share of crashes counts as."""
MAX_CANDIDATES = 200
"""The fastest by prediction: a slower one is not expected to gain."""
MAX_TRIES = 20
"""Of plans that cannot be written as a configuration of their framework, before the first is taken."""
TERMS = (*STEP_TERMS, PIPELINE)


class EndedTrial(Protocol):
    @property
    def key(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def step_time_s(self) -> float | None: ...
    @property
    def uncertainty(self) -> float | None: ...
    @property
    def peak_memory_bytes(self) -> int | None: ...
    @property
    def terms(self) -> Mapping[str, float] | None: ...
    @property
    def failure(self) -> TrialFailure | None: ...


def runs_of(scenario: Scenario, trials: Sequence[EndedTrial], id: str = "") -> list[Run]:
    """Trials that say something about the cluster: measured under the same conditions, or out of memory."""
    runs = []
    for trial in trials:
        is_full = trial.failure is not None and trial.failure.kind == OUT_OF_MEMORY
        if not is_full and (trial.step_time_s is None or trial.status != "measured"):
            continue
        peak = trial.peak_memory_bytes / GIB if trial.peak_memory_bytes and not is_full else None
        terms = {name: value for name, value in (trial.terms or {}).items() if name in TERMS and value > 0}
        measured = Measured(
            step_time_s=trial.step_time_s,
            peak_memory_gib=peak,
            noise=min(trial.uncertainty or 0.0, 1.0),
            terms_s=terms if trial.step_time_s else {},
        )
        planned = scenario.model_copy(update={"plan": trial.plan})
        runs.append(Run(planned, measured, is_full, f"{id} {trial.key}".strip(), "trial"))
    return runs


def most_promising(
    scenario: Scenario, ranked: Ranked, calibration: Calibration | None, runs: Sequence[Run]
) -> Plan:
    """Of the plans that a search found, the one of the greatest expected gain."""
    fastest = np.argsort(ranked.step_time_s, kind="stable")[:MAX_CANDIDATES]
    plans = [get_plan(ranked.plans, int(row)) for row in fastest]
    scenarios = [scenario.model_copy(update={"plan": plan}) for plan in plans]
    gains, predicted_s = expected_gains(scenarios, calibration or shipped_calibration(), runs)
    ordered = [plans[int(row)] for row in np.lexsort((predicted_s, -gains))]
    writable = (plan for plan in ordered[:MAX_TRIES] if why_inexpressible(scenario, plan) is None)
    return next(writable, ordered[0])


def expected_gains(
    scenarios: Sequence[Scenario], calibration: Calibration, runs: Sequence[Run]
) -> tuple[Array, Array]:
    """Of each plan: the share of the best measured step that it is expected to save, and the predicted
    seconds. Without a measured run the gain is over the slowest plan predicted."""
    x, keys = encode(scenarios)
    batch = predict_rows(x, keys, [s.training.precision for s in scenarios], calibration)
    seconds = batch.costs.step_time_s
    measured = [run.measured.step_time_s for run in runs if run.measured.step_time_s]
    best_s = min(measured, default=float(seconds.max()))
    improvement = _improvement(np.log(best_s / seconds), _sigma(batch, calibration))
    return -np.expm1(-improvement) * _runs_probability(batch, calibration, runs), seconds


def _sigma(batch: Batch, calibration: Calibration) -> Array:
    if calibration.cluster and calibration.cluster.weights:
        return calibration.cluster.spread(batch.inputs, batch.keys, calibration.shifts)[1]
    return np.asarray(np.log(batch.high_s / batch.low_s) / (2.0 * SIGMAS))


def _improvement(ahead: Array, sigma: Array) -> Array:
    from scipy.special import ndtr

    z = ahead / sigma
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    return np.asarray(sigma * (density + z * ndtr(z)))


def _runs_probability(batch: Batch, calibration: Calibration, runs: Sequence[Run]) -> Array:
    """That the plan fits, and that it does not crash as plans like it did."""
    fits = fit_probability(batch.costs.memory_bytes, batch.inputs.memory_bytes, batch.memory_error)
    tried = [run for run in runs if run.scenario.plan]
    if not tried:
        return fits * (1.0 - OTHER_CRASHES)
    x, _ = encode([run.scenario for run in tried])
    alike = likeness(calibration.cluster_prior, features(batch.inputs), features(x))
    crashed = np.array([run.crashed for run in tried], dtype=np.float64)
    share = (alike @ crashed + PRIOR_RUNS * OTHER_CRASHES) / (alike.sum(axis=1) + PRIOR_RUNS)
    return np.asarray(fits * (1.0 - share))


MIN_GAIN = 0.01
"""Gains below one percent are not worth a trial, however quiet the cluster."""


@dataclass(frozen=True)
class Budget:
    """What may be spent on trials, and what has been."""

    device_hours: float
    trials: int
    spent_device_hours: float = 0.0
    spent_trials: int = 0

    @property
    def left_device_hours(self) -> float:
        return max(0.0, self.device_hours - self.spent_device_hours)

    @property
    def spent(self) -> str | None:
        """Which budget is exhausted, in words; None if some is left."""
        if self.spent_trials >= self.trials:
            return f"the budget of {self.trials} trial{'' if self.trials == 1 else 's'} is exhausted"
        if self.left_device_hours <= 0:
            return f"the budget of {self.device_hours:g} device-hours is exhausted"
        return None


@dataclass(frozen=True)
class Judgement:
    stop: bool
    says: str
    expected_gain: float | None = None
    """Of the most promising plan that is left, as a share of the step time."""
    noise: float | None = None
    """The smallest gain that can be distinguished from noise."""


def judge(gains: Sequence[float], uncertainty: float, budget: Budget) -> Judgement:
    """`gains` are expected of plans not measured yet; `uncertainty` is that of the best's median."""
    noise = max(MIN_GAIN, math.sqrt(2) * uncertainty)
    best = max(gains, default=None)
    if best is None:
        return Judgement(True, "every plan that is legal and fits was measured or failed", None, noise)
    if best < noise:
        says = f"the best plan left is expected to gain {best:.1%}; below {noise:.1%} noise hides a gain"
        return Judgement(True, says, best, noise)
    if budget.spent:
        says = f"{budget.spent}; the best plan left is expected to gain {best:.1%}"
        return Judgement(True, says, best, noise)
    return Judgement(False, f"the best plan left is expected to gain {best:.1%}", best, noise)
