"""When to stop: the best plan left is not expected to gain more than can be measured (see `gain`)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
