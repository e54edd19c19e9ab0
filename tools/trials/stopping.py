"""When to stop: the best plan left is not expected to gain more than can be measured.

Expected improvement (Jones, Schonlau and Welch, Efficient Global Optimization, 1998, equation 15) over a
log-normal around the calibrated prediction, as wide as its 80% interval and wider after predictions that
were off.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

MIN_GAIN = 0.01
"""Gains below one percent are not worth a trial, however quiet the cluster."""
REMEMBERED = 2
"""Predictions whose errors count: older ones were made by a model that has learned since."""
_NORMAL = NormalDist()
_SIGMAS = 2 * _NORMAL.inv_cdf(0.9)
"""Standard deviations that an 80% interval spans."""


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


class StepEstimate(Protocol):
    """A predicted step time with its 80% interval."""

    @property
    def step_time_s(self) -> float: ...
    @property
    def step_time_low_s(self) -> float: ...
    @property
    def step_time_high_s(self) -> float: ...


class PredictedTrial(Protocol):
    @property
    def status(self) -> str: ...
    @property
    def predicted(self) -> StepEstimate: ...
    @property
    def step_time_s(self) -> float | None: ...


def surprise_of(trials: Sequence[PredictedTrial]) -> float:
    """Root mean square of the log errors of the last predictions; of calibrated ones, so not the first."""
    measured = [trial for trial in trials if trial.status == "measured"][1:][-REMEMBERED:]
    errors = [
        math.log(trial.predicted.step_time_s / trial.step_time_s) for trial in measured if trial.step_time_s
    ]
    return math.sqrt(sum(error**2 for error in errors) / len(errors)) if errors else 0.0


def expected_gain(best_s: float, prediction: StepEstimate, surprise: float = 0.0) -> float:
    """Mean of the share of the best measured step time that this plan is predicted to save."""
    width = math.log(prediction.step_time_high_s / prediction.step_time_low_s)
    sigma = math.hypot(width / _SIGMAS, surprise)
    ahead = math.log(best_s / prediction.step_time_s)
    if sigma <= 0:
        return max(0.0, 1 - math.exp(-ahead))
    z = ahead / sigma
    improvement = sigma * (_NORMAL.pdf(z) + z * _NORMAL.cdf(z))
    return 1 - math.exp(-improvement)


def judge(
    best_s: float,
    uncertainty: float,
    candidates: Sequence[StepEstimate],
    budget: Budget,
    surprise: float = 0.0,
) -> Judgement:
    """`candidates` are predictions of plans not measured yet; `uncertainty` is that of the best's median."""
    noise = max(MIN_GAIN, math.sqrt(2) * uncertainty)
    gains = [expected_gain(best_s, candidate, surprise) for candidate in candidates]
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
