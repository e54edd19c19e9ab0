"""Which plan to measure next, and when to stop: by the expected gain over the best measured.

Expected improvement (Jones, Schonlau and Welch, Efficient Global Optimization, 1998, equation 15) in log
time under the cluster's posterior, in which the errors of plans are correlated by their terms and by how
alike they are, times the probability that the plan runs at all. A noisy measurement moves the posterior
less and so is worth less, but never nothing (the knowledge gradient of Frazier, Powell and Dayanik, 2009).
The next trial has the greatest gain per device-hour; trials stop once none is expected to gain a percent.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.model.calibration import Calibration, shipped_calibration
from tools.model.observations import OTHER_CRASHES
from tools.model.predict import predict_rows
from tools.model.runs import PIPELINE, Measured, Run
from tools.physics.encode import encode
from tools.physics.inputs import Array
from tools.physics.memory import GIB
from tools.physics.terms import STEP_TERMS
from tools.recommend.workload import why_inexpressible
from tools.scenario import Plan, Scenario
from tools.search.ranked import Ranked
from tools.trials.gate import SIGMAS_95
from tools.trials.order import EndedTrial
from tools.trials.steering import OUT_OF_MEMORY

MAX_CANDIDATES = 200
"""The fastest by prediction: a slower one is not expected to gain."""
MAX_TRIES = 20
"""Plans tried in turn until a configuration of their framework can express one; else the first is taken."""
TERMS = (*STEP_TERMS, PIPELINE)
MIN_GAIN = 0.01
"""Gains below one percent are not worth a trial, however quiet the cluster."""
LOUD = 0.05
"""From this error of a comparison on, a reason to stop names the noise."""


def runs_of(scenario: Scenario, trials: Sequence[EndedTrial], id: str = "") -> list[Run]:
    """Trials that say something about the cluster: measured under the same conditions, or out of memory."""
    runs = []
    for trial in trials:
        is_full = trial.failure is not None and trial.failure.kind == OUT_OF_MEMORY
        if not is_full and (trial.step_time_s is None or trial.status != "measured"):
            continue
        terms = {name: value for name, value in (trial.terms or {}).items() if name in TERMS and value > 0}
        measured = Measured(
            step_time_s=trial.step_time_s,
            peak_memory_gib=(
                trial.peak_memory_bytes / GIB if trial.peak_memory_bytes and not is_full else None
            ),
            noise=min(trial.uncertainty or 0.0, 1.0),
            terms_s=terms if trial.step_time_s else {},
        )
        planned = scenario.model_copy(update={"plan": trial.plan})
        name = f"{id} {trial.key}".strip()
        runs.append(Run(scenario=planned, measured=measured, crashed=is_full, id=name, source="trial"))
    return runs


def comparison_error(trials: Sequence[EndedTrial]) -> float:
    """Standard error of the logarithm of two plans' ratio, as comparisons were here so far."""
    measured = [trial for trial in trials if trial.status == "measured"]
    if pairs := [trial.paired.error for trial in measured if trial.paired]:
        return pairs[-1]
    uncertainty = min((trial.uncertainty or 0.0 for trial in measured), default=0.0)
    return math.sqrt(2) * uncertainty / SIGMAS_95


def most_promising(
    scenario: Scenario, ranked: Ranked, calibration: Calibration | None, trials: Sequence[EndedTrial]
) -> Plan:
    """The plan with the greatest expected gain per device-hour among those that a search found."""
    fastest = np.argsort(ranked.step_time_s, kind="stable")[:MAX_CANDIDATES]
    plans = [ranked.plans.plan(int(row)) for row in fastest]
    scenarios = [scenario.model_copy(update={"plan": plan}) for plan in plans]
    runs, error = runs_of(scenario, trials), comparison_error(trials)
    gains, predicted_s = expected_gains(scenarios, calibration or shipped_calibration(), runs, error)
    cost_s = np.ones_like(predicted_s)
    if first := next((trial for trial in trials if trial.steps and trial.step_time_s), None):
        # A trial takes the start and the steps of the first one: every plan has as many ranks.
        steps, step_time_s = first.steps or 1, first.step_time_s or 0.0
        cost_s = max(0.0, first.seconds - steps * step_time_s) + steps * predicted_s
    ordered = [plans[int(row)] for row in np.lexsort((predicted_s, -gains / cost_s))]
    writable = (plan for plan in ordered[:MAX_TRIES] if why_inexpressible(scenario, plan) is None)
    return next(writable, ordered[0])


def expected_gains(
    scenarios: Sequence[Scenario], calibration: Calibration, runs: Sequence[Run], error: float = 0.0
) -> tuple[Array, Array]:
    """The share of the best measured step that each plan is expected to save once it is measured, with that
    error of the comparison, and its predicted seconds. Without a measured run the gain is over the slowest
    plan predicted."""
    x, keys = encode(scenarios)
    batch = predict_rows(x, keys, [s.training.precision for s in scenarios], calibration)
    seconds = batch.costs.step_time_s
    measured = [run.measured.step_time_s for run in runs if run.measured.step_time_s]
    best_s = min(measured, default=float(seconds.max()))
    sigma = batch.deviation**2 / np.hypot(batch.deviation, error)
    z = np.log(best_s / seconds) / sigma
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    below = np.array([0.5 * math.erfc(-value / math.sqrt(2.0)) for value in z.tolist()])  # of a normal value
    improvement = sigma * (density + z * below)
    return -np.expm1(-improvement) * batch.fit_probability * (1.0 - OTHER_CRASHES), seconds


@dataclass(frozen=True)
class TrialBudget:
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
class StopJudgement:
    stop: bool
    reason: str
    expected_gain: float | None = None
    """Gain of the most promising plan that is left, as a share of the step time."""
    noise: float | None = None
    """Standard error of a comparison of two plans here, as a share."""


def judge(gains: Sequence[float], error: float, budget: TrialBudget) -> StopJudgement:
    """`gains` are expected of plans not measured yet; `error` is that of a comparison."""
    best = max(gains, default=None)
    if best is None:
        return StopJudgement(True, "every plan that is legal and fits was measured or failed", None, error)
    loud = f", where noise leaves a comparison uncertain by {error:.0%}" if error > LOUD else ""
    expected = f"a trial of the best plan left is expected to gain {best:.1%}{loud}"
    if best < MIN_GAIN:
        return StopJudgement(True, f"{expected}; less than {MIN_GAIN:.0%} is not worth a trial", best, error)
    if budget.spent:
        return StopJudgement(True, f"{budget.spent}; {expected}", best, error)
    return StopJudgement(False, expected, best, error)
