"""What change of the step time is detected by when, what limits that, and what to do about it.

By the same thresholds as the detection itself (tools/nightly/steps.py); `benchmarks.nightly` checks that a
change of this size is detected as often as this says.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from tools.model.student import student_limit
from tools.nightly.findings import FigureJudgement
from tools.nightly.night import Night, StoredResult
from tools.nightly.noise import (
    USUAL_SCATTER,
    correlation,
    degrees_of_freedom,
    level_variance,
    median_known,
    with_prior,
)
from tools.nightly.steps import EXPLAINED_ALARMS, DetectionRules

FOUND_SCATTERS = 0.84
"""The normal distribution's quantile for 0.8, the share of changes of that size that are found by then."""
FALSE_ALARMS_PER_MONTH = 0.1
"""What `make bench NAME=nightly` measures for a quiet workload."""
SOON, LATER = 4, 10
"""Nights after which the page says what would have been found."""
MORE_STEPS = 20
MORE_NIGHTS = 28
MIN_GAIN = 0.9
"""Advice must make the change that is detected at least a tenth smaller."""
LimitedBy = Literal["nights", "steps", "scatter"]


class NightSensitivity(StoredResult):
    change_ratio: float
    """A change of the step time that is found within `nights` in four of five cases."""
    nights: int
    recorded_ratio: float
    """The same if a change of software, plan, nodes or data is recorded on its first night."""
    later_ratio: float
    later_nights: int
    false_alarms_per_month: float
    scatter_ratio: float
    """Scatter of the step time between nights."""
    step_error_ratio: float | None
    """The part of it that the scatter of a night's own steps explains."""
    num_steps: int
    """Per night."""
    num_nights: int
    """That make the level to compare with."""
    limited_by: LimitedBy
    advice: str
    """What would find the most."""


@dataclass(frozen=True)
class _Noise:
    between: float
    """Scatter that more steps per night would not remove."""
    within: float
    """Scatter of a night's mean by the scatter of its steps."""
    correlation: float
    num_nights: int

    @property
    def total(self) -> float:
        return math.hypot(self.between, self.within)

    def found_ratio(self, nights: int, rules: DetectionRules, odds: float = 1.0) -> float:
        """The smallest change that is detected within this many nights, as a ratio of the step time."""
        chance = min(rules.false_alarm_chance * odds, rules.max_chance)
        changes = []
        for length in range(2, nights + 1):
            pooled = length if length > 2 else 0
            freedom = degrees_of_freedom(self.num_nights + pooled, 2 if pooled else 1)
            scatter, freedom = with_prior(self.total, freedom, USUAL_SCATTER)
            variance = level_variance(self.num_nights, self.correlation)
            variance += level_variance(length, self.correlation)
            needed = student_limit(chance, round(freedom, 1)) + FOUND_SCATTERS
            changes.append(scatter * math.sqrt(variance) * needed)
        return math.expm1(max(min(changes), 0.0))


def sensitivity_of(
    nights: Sequence[Night], judged: FigureJudgement, rules: DetectionRules
) -> NightSensitivity | None:
    """None while there are too few nights to compare with."""
    noise = _noise(nights, judged, rules)
    if noise is None:
        return None
    smallest = judged.series.figure.min_change
    odds = max(1.0, EXPLAINED_ALARMS * len(nights))
    num_steps = int(median_known([float(night.num_steps) for night in nights[-rules.window :]], 0.0))
    soon = noise.found_ratio(SOON, rules)
    limited_by, advice = _advise(noise, num_steps, soon, rules)
    return NightSensitivity(
        change_ratio=max(soon, smallest),
        nights=SOON,
        recorded_ratio=max(noise.found_ratio(SOON, rules, odds), smallest),
        later_ratio=max(noise.found_ratio(LATER, rules), smallest),
        later_nights=LATER,
        false_alarms_per_month=FALSE_ALARMS_PER_MONTH,
        scatter_ratio=noise.total,
        step_error_ratio=noise.within or None,
        num_steps=num_steps,
        num_nights=noise.num_nights,
        limited_by=limited_by,
        advice=advice,
    )


def _noise(nights: Sequence[Night], judged: FigureJudgement, rules: DetectionRules) -> _Noise | None:
    """As the detector estimates it. The steps of a night cannot explain more than all of the scatter."""
    history, values = judged.history, judged.series.values
    present = history.present[-rules.window :]
    if len(present) < 2 or len(present) + len(history.deviations) < rules.min_nights:
        return None
    own = np.asarray([values[night] for night in present], dtype=np.float64)
    deviations = np.concatenate([history.deviations, own - rules.level(own)])
    total = rules.scatter(deviations[-rules.window :])
    errors = [nights[judged.series.nights[night]].step_error_ratio for night in present]
    within = min(median_known(errors, 0.0), total)
    between = math.sqrt(max(total**2 - within**2, 0.0))
    return _Noise(between, within, correlation(deviations, max(total, USUAL_SCATTER)), len(present))


def _advise(noise: _Noise, num_steps: int, now: float, rules: DetectionRules) -> tuple[LimitedBy, str]:
    """The one of three remedies after which the smallest change is detected."""
    more_nights = replace(noise, num_nights=max(noise.num_nights, MORE_NIGHTS))
    more_steps = noise
    if 0 < num_steps < MORE_STEPS:
        more_steps = replace(noise, within=noise.within * math.sqrt(num_steps / MORE_STEPS))
    calmer = replace(noise, between=noise.between / 2)
    found: dict[LimitedBy, float] = {
        "steps": more_steps.found_ratio(SOON, rules),
        "nights": more_nights.found_ratio(SOON, rules),
        "scatter": calmer.found_ratio(SOON, rules),
    }
    # Half the scatter is a wish; the other two are at hand, and come first if they help.
    at_hand: LimitedBy = "steps" if found["steps"] <= found["nights"] else "nights"
    limited_by: LimitedBy = at_hand if found[at_hand] <= MIN_GAIN * now else "scatter"
    within = f"{found[limited_by]:.1%} within {SOON} nights"
    if limited_by == "steps":
        return limited_by, f"profile {MORE_STEPS} steps per night instead of {num_steps}: {within}"
    if limited_by == "nights":
        missing = MORE_NIGHTS - noise.num_nights
        return limited_by, f"wait: after {missing} more quiet nights, {within}"
    return limited_by, f"measure on dedicated nodes: with half the scatter, {within}"
