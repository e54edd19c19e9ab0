"""The last night of a workload beside those before it: all that a report says about it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tools.nightly.attribution import Attribution, attribute, nights_with_changes
from tools.nightly.figures import LEAST_STEP_RATIO, MFU, STEP_TIME, TERM, Series, list_series
from tools.nightly.findings import IMPROVED, NEW, OPEN, RECOVERED, SUSPECTED, Finding, judge
from tools.nightly.night import Night
from tools.nightly.noise import level
from tools.nightly.steps import Course, Rules
from tools.nightly.worth import HOURS_PER_DAY, lost_device_hours

REGRESSED, SLOWER, SUSPECTED_SLOW, NOTICE = "regressed", "slower", "suspected", "notice"
QUIET, LEARNING = "quiet", "learning"
STATUSES = {
    NEW: REGRESSED,
    OPEN: SLOWER,
    SUSPECTED: SUSPECTED_SLOW,
    RECOVERED: RECOVERED,
    IMPROVED: IMPROVED,
}


@dataclass(frozen=True)
class Review:
    """`findings` are of the last night; the step time comes first where it has one."""

    nights: list[Night]
    """Of the last night's contract, oldest first."""
    others: int
    """Nights of other contracts, which were left out."""
    findings: list[Finding]
    attribution: Attribution | None
    """Of the step time's change, else of the first figure's."""
    lost_device_hours_per_day: float
    """Against the level before the regression that is open."""
    levels: dict[str, list[float]]
    """Of every figure the level on each night that has it, for plots."""
    learning: bool
    """Whether there are too few nights to judge."""

    @property
    def headline(self) -> Finding | None:
        """What is said of the step time."""
        return next((one for one in self.findings if one.figure == STEP_TIME), None)

    @property
    def is_regression(self) -> bool:
        """Whether the step time has got worse on this night: what an alarm is raised for."""
        return self.headline is not None and self.headline.state == NEW

    @property
    def status(self) -> str:
        """The night in a word, by the step time first."""
        if self.headline is not None:
            return STATUSES[self.headline.state]
        if any(one.state in (NEW, OPEN) for one in self.findings):
            return NOTICE
        return LEARNING if self.learning else QUIET


def review(
    nights: Sequence[Night],
    hours_per_day: float = HOURS_PER_DAY,
    least_step_ratio: float = LEAST_STEP_RATIO,
    rules: Rules | None = None,
    told_until: float | None = None,
) -> Review:
    """Nights in any order; those of another contract than the last one's are left out.

    What happened after `told_until` is new; if absent, only what happened on the last night.
    """
    if not nights:
        raise ValueError("a review needs at least one night")
    ordered = sorted(nights, key=lambda night: (night.at, night.key))
    same = [night for night in ordered if night.contract == ordered[-1].contract]
    changed = nights_with_changes(same)
    unread = None if told_until is None else sum(night.at <= told_until for night in same)
    judged = [(one, *judge(one, changed, rules, unread)) for one in list_series(same, least_step_ratio)]
    findings = [found for one, found, _ in judged if found and one.places[-1] == len(same) - 1]
    head = next((one for one in findings if one.figure == STEP_TIME), None)
    told = head or next(iter(findings), None)
    return Review(
        nights=same,
        others=len(ordered) - len(same),
        findings=_without_repeats(findings, head),
        attribution=attribute(same, told.since) if told else None,
        lost_device_hours_per_day=_lost(head, same[-1].num_devices, hours_per_day),
        levels={one.figure.name: _levels(one, course) for one, _, course in judged},
        learning=len(same) <= (rules or Rules()).learning,
    )


def _lost(head: Finding | None, num_devices: int, hours_per_day: float) -> float:
    if head is None or not head.is_bad:
        return 0.0
    return lost_device_hours(num_devices, head.anchor, head.now, hours_per_day)


def _without_repeats(findings: list[Finding], head: Finding | None) -> list[Finding]:
    """MFU says what the step time says, and parts of the step are told as its causes."""
    if head is None:
        return findings
    return [one for one in findings if not one.figure.startswith((MFU, TERM))]


def _levels(series: Series, course: Course) -> list[float]:
    """A step is drawn where it began, not where it was noticed."""
    lasting = [step for step in course.steps if step.cleared is None]
    values = np.asarray(series.values)
    bounds = [0, *(step.night for step in lasting), len(values)]
    parts = [values[start:end] for start, end in pairwise(bounds)]
    heights = [step.before for step in lasting] + [level(values[course.present])]
    return [
        series.figure.from_scale(height) for part, height in zip(parts, heights, strict=True) for _ in part
    ]
