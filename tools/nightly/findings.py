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
from tools.nightly.noise import USUAL_SCATTER, level_variance, median_known
from tools.nightly.steps import Hint, LevelHistory, Rules, Step, detect_steps

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
MAX_RETURN_NIGHTS = 10
"""An improvement that lasts for fewer nights was none: its end is no regression."""


@dataclass(frozen=True)
class Figure:
    name: str
    label: str
    min_change: float
    """The smallest change that is reported, in the figure's scale."""
    to_scale: Callable[[float], float]
    from_scale: Callable[[float], float]
    is_ratio: bool = True
    """Whether a change reads as a ratio of the figure itself; else as a share of the step."""

    @property
    def is_headline(self) -> bool:
        """The others explain, or warn of something that costs no time yet."""
        return self.name == STEP_TIME

    def change_ratio(self, before: float, after: float) -> float:
        """Between two levels in this scale, as people read it: +0.05 is five percent (of the step) more."""
        if not self.is_ratio:
            return after - before
        return self.from_scale(after) / self.from_scale(before) - 1


@dataclass(frozen=True)
class Series:
    """A figure over the nights that have it."""

    figure: Figure
    nights: list[int]
    """Which nights of the workload have it."""
    times: list[float]
    """When those nights were, in seconds since 1970."""
    values: list[float]
    """In the figure's scale."""

    def hints_of(self, hints: Sequence[Hint]) -> list[Hint]:
        """With the nights of the workload as positions in this series."""
        return [
            replace(
                hint, night=bisect_left(self.nights, hint.night), known=bisect_left(self.nights, hint.known)
            )
            for hint in hints
            if hint.night in self.nights
        ]


class Finding(StoredResult):
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
    """Of single nights, as `change_ratio`."""

    @property
    def is_bad(self) -> bool:
        return self.state in (SUSPECTED, NEW, OPEN)


@dataclass(frozen=True)
class Judgement:
    """What to report of one figure on the last night, if anything, and how it got there."""

    series: Series
    history: LevelHistory
    finding: Finding | None = None
    first_night: int = 0
    """Of the finding, among the workload's nights."""


@dataclass(frozen=True)
class _OpenRegression:
    """The steps of a figure as a reader of the reports has followed them."""

    first: Step | None = None
    """The step that began the regression that is still open."""
    last: Step | None = None
    """The last step that was not cleared."""
    closed: Step | None = None
    """The step that began the regression that `last` ended."""


def list_series(nights: Sequence[Night], min_step_ratio: float = MIN_STEP_RATIO) -> list[Series]:
    """The step time first. Nights are of one contract, oldest first."""
    step_s = median_known([night.step_time_s for night in nights], 1.0)
    figures: list[tuple[Figure, Callable[[Night], float | None]]] = [
        (_ratio(STEP_TIME, "step time", min_step_ratio), lambda night: night.step_time_s),
        (_inverse(MFU, "MFU", min_step_ratio), lambda night: night.mfu),
        (_ratio(MEMORY, "peak memory", 0.02), lambda night: night.peak_memory_bytes),
        (_share(SPREAD, "spread of ranks", 0.02, 1.0), lambda night: night.rank_spread_ratio),
    ]
    terms = sorted({term for night in nights for term in night.terms_s})
    figures += [(_share(TERM + term, term, 0.01, step_s), _read_term(term)) for term in terms]
    all_series = [_series(figure, read, nights) for figure, read in figures]
    return [series for series in all_series if series.values]


def _read_term(name: str) -> Callable[[Night], float | None]:
    return lambda night: night.terms_s.get(name)


def _ratio(name: str, label: str, min_ratio: float) -> Figure:
    return Figure(name, label, math.log1p(min_ratio), math.log, math.exp)


def _inverse(name: str, label: str, min_ratio: float) -> Figure:
    """Less is worse."""
    return Figure(name, label, math.log1p(min_ratio), lambda x: -math.log(x), lambda y: math.exp(-y))


def _share(name: str, label: str, min_change: float, whole: float) -> Figure:
    return Figure(name, label, min_change, lambda x: x / whole, lambda y: y * whole, is_ratio=False)


def _series(figure: Figure, read: Callable[[Night], float | None], nights: Sequence[Night]) -> Series:
    positions, values = [], []
    for position, night in enumerate(nights):
        value = read(night)
        if value is not None and (value > 0 or not figure.is_ratio):
            positions.append(position)
            values.append(figure.to_scale(value))
    times = [nights[position].at for position in positions]
    return Series(figure, positions, times, values)


def judge(
    series: Series,
    changed: Collection[int] = (),
    rules: Rules | None = None,
    unreported: int | None = None,
    hints: Sequence[Hint] = (),
) -> Judgement:
    """`changed` are the nights on which the environment changed, `hints` all that points at a step; nights
    from `unreported` on (the last one if absent) have not been reported yet.
    """
    rules = rules or Rules()
    if not series.figure.is_headline:
        rules = replace(rules, false_alarm_chance=rules.false_alarm_chance * STRICTER)
    figure = series.figure
    history = detect_steps(series.values, USUAL_SCATTER, figure.min_change, rules, series.hints_of(hints))
    last = len(series.values) - 1
    fresh = last if unreported is None else min(last, bisect_left(series.nights, unreported))
    return _judge(series, history, rules, changed, fresh)


def new_regressions(steps: Sequence[Step]) -> list[Step]:
    """Steps to a worse level, but for the end of an improvement that did not last."""
    lasting = [step for step in steps if step.cleared is None]
    return [
        step
        for before, step in zip([None, *lasting], lasting, strict=False)
        if step.after > step.before and not (before and _is_return(step, before))
    ]


def _is_return(step: Step, last: Step) -> bool:
    """From a short improvement to the level before it."""
    is_short = step.night - last.night < MAX_RETURN_NIGHTS
    return is_short and last.after < last.before and step.before < step.after < last.before + step.scatter


def alarm_night(step: Step, series: Series, changed: Collection[int]) -> int | None:
    """The night on which a step is reported as new, as a position in the series."""
    if step.noticed != step.confirmed and series.nights[step.night] in changed:
        return step.noticed
    return step.confirmed


def _judge(
    series: Series, history: LevelHistory, rules: Rules, changed: Collection[int], fresh: int
) -> Judgement:
    regression = _follow_regression(history.steps)
    now = _present_level(series, history, rules)
    if not regression.first or not regression.last:
        return _judge_improvement(series, history, regression, now, fresh)
    first, last = regression.first, regression.last
    if len(series.values) - 1 - last.night >= ACCEPTED_AFTER:
        return Judgement(series, history)
    is_worse, alarm = last.after > last.before, alarm_night(last, series, changed)
    if is_worse and (alarm is None or alarm >= fresh):
        return _finding(series, history, SUSPECTED if alarm is None else NEW, last, now, first.before)
    return _finding(series, history, OPEN, first, now, first.before)


def _present_level(series: Series, history: LevelHistory, rules: Rules) -> float:
    """The level before a single better night, if there is one: that night proves nothing yet."""
    last = history.steps[-1] if history.steps else None
    if last and last.cleared is None and last.confirmed is None and last.after < last.before:
        return last.before
    return rules.level(np.asarray([series.values[night] for night in history.present[-rules.window :]]))


def _judge_improvement(
    series: Series, history: LevelHistory, regression: _OpenRegression, now: float, fresh: int
) -> Judgement:
    """Only of nights that have not been reported."""
    nothing = Judgement(series, history)
    if history.steps and (history.steps[-1].cleared or 0) >= max(fresh, 1):
        outlier = history.steps[-1]
        if outlier.after < outlier.before:
            return nothing
        return _finding(series, history, RECOVERED, replace(outlier, before=outlier.after), now)
    last = regression.last
    if last is None or last.after > last.before or last.confirmed is None or last.confirmed < fresh:
        return nothing
    return _finding(series, history, RECOVERED if regression.closed else IMPROVED, last, now)


def _follow_regression(steps: list[Step]) -> _OpenRegression:
    regression = _OpenRegression()
    for step in steps:
        is_better = step.after < step.before
        if step.cleared is not None or (is_better and step.confirmed is None):
            continue
        if regression.last and _is_return(step, regression.last):
            regression = replace(regression, last=regression.first)
        elif regression.first is None:
            regression = _OpenRegression(first=None if is_better else step, last=step)
        elif _is_back(step, regression.first):
            regression = _OpenRegression(last=step, closed=regression.first)
        else:
            regression = replace(regression, last=step)
    return regression


def _is_back(step: Step, first: Step) -> bool:
    """Near the level before the regression, or nearer to it than to the regression."""
    near = NEAR_SCATTERS * step.scatter * (2 * level_variance(NEAR_NIGHTS)) ** 0.5
    left = step.after - first.before
    return step.after < step.before and left < max(near, RECOVERED_SHARE * (first.after - first.before))


def _finding(
    series: Series, history: LevelHistory, state: str, step: Step, now: float, anchor: float | None = None
) -> Judgement:
    figure = series.figure
    finding = Finding(
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
    return Judgement(series, history, finding, series.nights[step.night])
