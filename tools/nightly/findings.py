"""Which figures of a night are watched, and what is reported for each: suspected, new, open, recovered,
improved.

Up is always worse; ratios are logarithms. A step that only one night shows is a suspicion until the next.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tools.nightly.night import Night, StoredResult
from tools.nightly.noise import USUAL_SCATTER, FigureValues, level_variance, median_known
from tools.nightly.steps import (
    DetectionRules,
    Hint,
    LevelHistory,
    LevelStep,
    detect_steps,
    hints_among,
)

STEP_TIME, MFU, MEMORY, SPREAD = "step_time_s", "mfu", "peak_memory_bytes", "rank_spread_ratio"
TERM = "terms_s."
MIN_STEP_RATIO = 0.01

SUSPECTED, NEW, OPEN = "suspected", "new", "open"
RECOVERED, IMPROVED = "recovered", "improved"
ACCEPTED_AFTER = 28
"""Nights at a new level after which it is no longer reported."""
STRICTER = 0.1
"""Factor on the chance of a false alarm for figures other than the step time: there are many of them."""
RECOVERED_SHARE = 0.5
"""A regression of which less than this share is left is over."""
NEAR_SCATTERS = 2.0
NEAR_NIGHTS = 7
DRIFT_NIGHTS, MIN_DRIFT_NIGHTS = 28, 5
DRIFT_FIT = 0.9
"""A slope is told if it leaves less than this share of the squares that the best single step leaves: so do 5%
of steps of 4% after 4 nights, 2% after 7, and 92% of drifts of 0.5% a night after 14, at 1% scatter."""
YOUNG_NIGHTS, EXPLAINED_FIT = 7, 0.75
"""On the same scale, of a step on the night of a recorded change: a few nights cannot tell it from a slope,
and what changes at once makes a step. Chosen on the months that benchmarks/nightly.py generates."""
MAX_ODD_NIGHTS = 3
"""An alarm needs two nights. One that ends on the night after them, or one later, without a recorded change
on the night that began it, was noise: what somebody repairs is slow for longer, or changed something."""
REJUDGED_NIGHTS, NO_CHANGE_ERRORS = 7, 1.0
"""From so many nights on an open regression is judged by the scatter of all of them: it was none if the two
levels differ by less than the standard error of their difference."""
MAX_JUMP_SCATTERS = 7.0
MAX_RETURN_NIGHTS = 10
"""The end of an improvement that lasted fewer nights is not a regression."""


@dataclass(frozen=True)
class WatchedFigure:
    name: str
    label: str
    min_change: float
    """The smallest change that is reported, in the figure's scale."""
    to_scale: Callable[[float], float]
    from_scale: Callable[[float], float]
    is_ratio: bool = True
    """Whether a change reads as a ratio of the figure itself; else as a share of the step."""

    def change_ratio(self, before: float, after: float) -> float:
        """Between two levels in this scale, as people read it: +0.05 is five percent (of the step) more."""
        if not self.is_ratio:
            return after - before
        return self.from_scale(after) / self.from_scale(before) - 1


@dataclass(frozen=True)
class Series:
    figure: WatchedFigure
    nights: list[int]
    """Which nights of the workload have it."""
    times: list[float]
    """When those nights were, in seconds since 1970."""
    values: list[float]
    """In the figure's scale."""


class NightFinding(StoredResult):
    figure: str
    label: str
    state: str
    """suspected, new, open, recovered or improved."""
    since: float
    """Time of the first night at the new level."""
    nights: int
    """At the new level so far."""
    before: float
    now: float
    """In the figure's own unit."""
    change_ratio: float
    """From before to now: of the figure, or in shares of the step for its parts."""
    anchor: float
    """The level before the first regression that is still open; `before` if there is none."""
    scatter_ratio: float
    """Scatter of single nights, in the unit of `change_ratio`."""
    drift_ratio: float | None = None
    """Change per night, in the unit of `change_ratio`, if it came night by night and not at once."""
    odd_nights: int | None = None
    """How many nights from `since` on were the exception, if what followed shows that nothing had changed: a
    suspicion or an alarm is taken back."""

    @property
    def is_bad(self) -> bool:
        return self.state in (SUSPECTED, NEW, OPEN)


@dataclass(frozen=True)
class FigureJudgement:
    """What to report of one figure on the last night, if anything, and how it got there."""

    series: Series
    history: LevelHistory
    finding: NightFinding | None = None
    first_night: int = 0
    """The finding's first night, as an index into the workload's nights."""


@dataclass(frozen=True)
class _OpenRegression:
    """The steps of a figure as a reader of the reports has followed them."""

    first: LevelStep | None = None
    """The step that began the regression that is still open."""
    last: LevelStep | None = None
    """The last step that was not cleared."""
    closed: LevelStep | None = None
    """The step that began the regression that `last` ended."""


def list_series(nights: Sequence[Night], min_step_ratio: float = MIN_STEP_RATIO) -> list[Series]:
    """The step time first. Nights are of one contract, oldest first."""
    step_s = median_known([night.step_time_s for night in nights], 1.0)
    min_step = math.log1p(min_step_ratio)

    def share(name: str, label: str, least: float, whole: float) -> WatchedFigure:
        return WatchedFigure(name, label, least, lambda x: x / whole, lambda y: y * whole, is_ratio=False)

    figures = [
        WatchedFigure(STEP_TIME, "step time", min_step, math.log, math.exp),
        # Less is worse.
        WatchedFigure(MFU, "MFU", min_step, lambda x: -math.log(x), lambda y: math.exp(-y)),
        WatchedFigure(MEMORY, "peak memory", math.log1p(0.02), math.log, math.exp),
        share(SPREAD, "spread of ranks", 0.02, 1.0),
    ]
    values: dict[str, list[float | None]] = {
        figure.name: [getattr(night, figure.name) for night in nights] for figure in figures
    }
    for term in sorted({term for night in nights for term in night.terms_s}):
        figures.append(share(TERM + term, term, 0.01, step_s))
        values[TERM + term] = [night.terms_s.get(term) for night in nights]
    found = []
    for figure in figures:
        usable = {
            position: figure.to_scale(value)
            for position, value in enumerate(values[figure.name])
            if value is not None and (value > 0 or not figure.is_ratio)
        }
        if usable:
            times = [nights[position].at for position in usable]
            found.append(Series(figure, list(usable), times, list(usable.values())))
    return found


def judge(
    series: Series,
    changed: Collection[int] = (),
    rules: DetectionRules | None = None,
    unreported: int | None = None,
    hints: Sequence[Hint] = (),
) -> FigureJudgement:
    """`changed` are the nights on which the environment changed, `hints` all that points at a step; nights
    from `unreported` on (the last one if absent) have not been reported yet.
    """
    rules, figure = rules or DetectionRules(), series.figure
    if figure.name != STEP_TIME:
        rules = replace(rules, false_alarm_chance=rules.false_alarm_chance * STRICTER)
    known = hints_among(hints, series.nights)
    history = detect_steps(series.values, USUAL_SCATTER, figure.min_change, rules, known)
    last = len(series.values) - 1
    fresh = last if unreported is None else min(last, bisect_left(series.nights, unreported))
    regression = _follow_regression(history.steps)
    outlier = history.steps[-1] if history.steps else None
    if outlier and outlier.cleared is None and outlier.confirmed is None and outlier.after < outlier.before:
        now = outlier.before  # a single better night proves nothing yet
    else:
        now = rules.level(np.asarray([series.values[night] for night in history.present[-rules.window :]]))
    nothing, step = FigureJudgement(series, history), regression.last
    if not regression.first or not step:
        # An improvement is reported once, on nights that have not been reported.
        if outlier and (outlier.cleared or 0) >= max(fresh, 1):
            if outlier.after < outlier.before:
                return nothing
            return _taken_back(series, history, replace(outlier, before=outlier.after), now, 1)
        if step is None or step.after > step.before or step.confirmed is None or step.confirmed < fresh:
            return nothing
        if regression.closed is None:
            return _finding(series, history, IMPROVED, step, now)
        return _ended(series, history, regression.closed, step, now, changed, rules)
    if last - step.night >= ACCEPTED_AFTER:
        return nothing
    alarm = alarm_night(step, series, changed)
    near = range(max(step.night - 1, 0), step.night + 1)  # detection may place a step a night late
    explained = [night for night in near if series.nights[night] in changed and last - night < YOUNG_NIGHTS]
    state, drift = OPEN, _find_drift(series.values, step.scatter, explained)
    if step.after > step.before and (alarm is None or alarm >= fresh):
        state = SUSPECTED if alarm is None else NEW
    if drift and state != SUSPECTED:
        # It is told as new once: what follows is more of the same.
        state = NEW if state == NEW and regression.first is step else OPEN
        slope = replace(step, night=drift.night, before=drift.before)
        found = _finding(series, history, state, slope, drift.now, regression.first.before)
        rate = figure.change_ratio(drift.before, drift.before + drift.per_night)
        told = found.finding and found.finding.model_copy(update={"drift_ratio": rate})
        return replace(found, finding=told)
    if state == OPEN and regression.first is step and _is_scatter(series.values, step, rules):
        if _is_scatter(series.values[:last], step, rules):
            return nothing  # it was taken back already
        return _taken_back(series, history, replace(step, before=step.after), now, last + 1 - step.night)
    shown = regression.first if state == OPEN else step
    return _finding(series, history, state, shown, now, regression.first.before)


def _ended(
    series: Series,
    history: LevelHistory,
    began: LevelStep,
    ended: LevelStep,
    now: float,
    changed: Collection[int],
    rules: DetectionRules,
) -> FigureJudgement:
    """A regression is over, or it was none."""
    if _is_scatter(series.values[:-1], began, rules):
        return FigureJudgement(series, history)  # it was taken back already
    odd = ended.night - began.night
    if odd <= MAX_ODD_NIGHTS and series.nights[began.night] not in changed:
        return _taken_back(series, history, replace(ended, night=began.night), now, odd)
    return _finding(series, history, RECOVERED, ended, now)


def _is_scatter(values: Sequence[float], step: LevelStep, rules: DetectionRules) -> bool:
    """Whether the nights since a step lie where those before it do, by what all of them scatter by."""
    after = np.asarray(values[step.night :])
    before = np.asarray(values[max(step.night - rules.window, 0) : step.night])
    if len(after) < REJUDGED_NIGHTS:
        return False
    levels = rules.level(before), rules.level(after)
    scatter = rules.scatter(np.concatenate([before - levels[0], after - levels[1]]))
    error = scatter * (level_variance(len(before)) + level_variance(len(after))) ** 0.5
    return bool(levels[1] - levels[0] < NO_CHANGE_ERRORS * error)


@dataclass(frozen=True)
class _Drift:
    """A slope, in the figure's own scale."""

    night: int
    """The last night before it."""
    before: float
    now: float
    per_night: float


def _find_drift(values: Sequence[float], scatter: float, explained: Sequence[int]) -> _Drift | None:
    """The slope to a worse level that the recent nights lie nearer to than to any single step, clearly nearer
    than to one on an `explained` night, unless it has a jump that single nights do not scatter by."""
    recent = np.asarray(values[-DRIFT_NIGHTS:])
    nights = np.arange(len(recent))
    starts = nights[: len(recent) - MIN_DRIFT_NIGHTS]
    if not len(starts):
        return None

    def fit(shapes: FigureValues) -> tuple[FigureValues, FigureValues]:
        """How steep each shape is at its best, and the squares that it leaves."""
        off, values = shapes - shapes.mean(axis=1, keepdims=True), recent - recent.mean()
        squares = (off**2).sum(axis=1)
        sizes = off @ values / squares
        return sizes, (values**2).sum() - sizes**2 * squares

    ramps = np.maximum(nights - starts[:, None], 0.0)
    slopes, left = fit(ramps)
    best = int(np.argmin(left))
    _, left_by_steps = fit(np.asarray(nights >= nights[1:, None], dtype=np.float64))
    first = len(values) - len(recent) + 1
    fits = [EXPLAINED_FIT if first + place in explained else 1.0 for place in range(len(left_by_steps))]
    if slopes[best] <= 0 or left[best] >= DRIFT_FIT * (left_by_steps * fits).min():
        return None
    if np.diff(recent[starts[best] :]).max() > MAX_JUMP_SCATTERS * scatter:
        return None
    rate = float(slopes[best])
    before = float(recent.mean() - rate * ramps[best].mean())
    total = rate * float(ramps[best][-1])
    return _Drift(len(values) - len(recent) + int(starts[best]), before, before + total, rate)


def new_regressions(steps: Sequence[LevelStep]) -> list[LevelStep]:
    """Steps to a worse level, but for the end of an improvement that did not last."""
    lasting = [step for step in steps if step.cleared is None]
    return [
        step
        for before, step in zip([None, *lasting], lasting, strict=False)
        if step.after > step.before and not (before and _is_return(step, before))
    ]


def _is_return(step: LevelStep, last: LevelStep) -> bool:
    """From a short improvement to the level before it."""
    is_short = step.night - last.night < MAX_RETURN_NIGHTS
    return is_short and last.after < last.before and step.before < step.after < last.before + step.scatter


def alarm_night(step: LevelStep, series: Series, changed: Collection[int]) -> int | None:
    """The night on which a step is reported as new, as a position in the series."""
    if step.noticed != step.confirmed and series.nights[step.night] in changed:
        return step.noticed
    return step.confirmed


def _follow_regression(steps: list[LevelStep]) -> _OpenRegression:
    """A regression is over near the level before it, or nearer to that than to its own."""
    regression = _OpenRegression()
    for step in steps:
        first, is_better = regression.first, step.after < step.before
        if step.cleared is not None or (is_better and step.confirmed is None):
            continue
        if regression.last and _is_return(step, regression.last):
            regression = replace(regression, last=first)
        elif first is None:
            regression = _OpenRegression(first=None if is_better else step, last=step)
        else:
            near = NEAR_SCATTERS * step.scatter * (2 * level_variance(NEAR_NIGHTS)) ** 0.5
            is_near = step.after - first.before < max(near, RECOVERED_SHARE * (first.after - first.before))
            regression = replace(regression, last=step)
            if is_better and is_near:
                regression = _OpenRegression(last=step, closed=first)
    return regression


def _taken_back(
    series: Series, history: LevelHistory, step: LevelStep, now: float, odd_nights: int
) -> FigureJudgement:
    found = _finding(series, history, RECOVERED, step, now)
    told = found.finding and found.finding.model_copy(update={"odd_nights": odd_nights})
    return replace(found, finding=told)


def _finding(
    series: Series,
    history: LevelHistory,
    state: str,
    step: LevelStep,
    now: float,
    anchor: float | None = None,
) -> FigureJudgement:
    figure = series.figure
    finding = NightFinding(
        figure=figure.name,
        label=figure.label,
        state=state,
        since=series.times[step.night],
        nights=len(series.values) - step.night,
        before=figure.from_scale(step.before),
        now=figure.from_scale(now),
        change_ratio=figure.change_ratio(step.before, now),
        anchor=figure.from_scale(step.before if anchor is None else anchor),
        scatter_ratio=abs(figure.change_ratio(0.0, step.scatter)),
    )
    return FigureJudgement(series, history, finding, series.nights[step.night])
