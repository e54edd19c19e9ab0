"""Which figures of a night are watched, and what is reported for each: suspected, new, persisting, over,
improved.

Up is always worse; ratios are logarithms. A step that only one night shows is a suspicion until the next.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tools.nightly.night import Night
from tools.nightly.noise import level_variance, middle
from tools.nightly.steps import Course, Rules, Step, follow

STEP_TIME, MFU, MEMORY, SPREAD = "step_time_s", "mfu", "peak_memory_bytes", "rank_spread_ratio"
TERM = "terms_s."
LEAST_SCATTER = 0.005
"""Nights of a quiet machine still differ by half a percent."""
LEAST_STEP_RATIO = 0.01


@dataclass(frozen=True)
class Figure:
    name: str
    label: str
    least: float
    """The least change worth telling, in the figure's scale."""
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
    places: list[int]
    """Which nights have it."""
    values: list[float]
    """In the figure's scale."""
    floor: float

    def own_nights(self, places: Collection[int]) -> list[int]:
        """Nights of the workload in the count of this series."""
        return [night for night, place in enumerate(self.places) if place in places]


def list_series(nights: Sequence[Night], least_step_ratio: float = LEAST_STEP_RATIO) -> list[Series]:
    """The step time first. Nights are of one contract, oldest first."""
    step_s = middle([night.step_time_s for night in nights], 1.0)
    figures: list[tuple[Figure, Callable[[Night], float | None]]] = [
        (_ratio(STEP_TIME, "step time", least_step_ratio), lambda night: night.step_time_s),
        (_inverse(MFU, "MFU", least_step_ratio), lambda night: night.mfu),
        (_ratio(MEMORY, "peak memory", 0.02), lambda night: night.peak_memory_bytes),
        (_share(SPREAD, "spread of ranks", 0.02, 1.0), lambda night: night.rank_spread_ratio),
    ]
    terms = sorted({term for night in nights for term in night.terms_s})
    figures += [(_share(TERM + term, term, 0.01, step_s), _term(term)) for term in terms]
    found = [_series(figure, read, nights) for figure, read in figures]
    return [one for one in found if one.values]


def _term(name: str) -> Callable[[Night], float | None]:
    return lambda night: night.terms_s.get(name)


def _ratio(name: str, label: str, least_ratio: float) -> Figure:
    return Figure(name, label, math.log1p(least_ratio), math.log, math.exp)


def _inverse(name: str, label: str, least_ratio: float) -> Figure:
    """Less is worse."""
    return Figure(name, label, math.log1p(least_ratio), lambda x: -math.log(x), lambda y: math.exp(-y))


def _share(name: str, label: str, least: float, whole: float) -> Figure:
    return Figure(name, label, least, lambda x: x / whole, lambda y: y * whole, is_ratio=False)


def _series(figure: Figure, read: Callable[[Night], float | None], nights: Sequence[Night]) -> Series:
    places, values = [], []
    for place, night in enumerate(nights):
        value = read(night)
        if value is not None and (value > 0 or not figure.is_ratio):
            places.append(place)
            values.append(figure.to_scale(value))
    errors = [nights[place].step_error_ratio for place in places]
    return Series(figure, places, values, max(LEAST_SCATTER, middle(errors, 0.0)))


SUSPECTED, NEW, OPEN = "suspected", "new", "open"
RECOVERED, IMPROVED = "recovered", "improved"
ACCEPTED_AFTER = 28
"""Nights at a new level after which it is no longer told."""
STRICTER = 0.1
"""Of the chance of a false alarm, for the figures beside the step time: there are many of them."""
MADE_GOOD = 0.5
"""A regression of which less than this share is left is over."""
NEAR_SCATTERS = 2.0
NEAR_NIGHTS = 7


@dataclass(frozen=True)
class Finding:
    figure: str
    label: str
    state: str
    """suspected, new, open, recovered or improved."""
    since: int
    """The first night at the new level."""
    nights: int
    """At the new level so far."""
    before: float
    now: float
    """In the figure's own unit."""
    change_ratio: float
    """From before to now: of the figure, or in shares of the step for its parts."""
    anchor: float
    """The level before the first regression that is still open; `before` where there is none."""
    scatter_ratio: float
    """Of single nights, as `change_ratio`."""

    @property
    def is_bad(self) -> bool:
        return self.state in (SUSPECTED, NEW, OPEN)


@dataclass(frozen=True)
class _Story:
    """The steps of a figure as a reader of the report has lived through them."""

    first: Step | None = None
    """The step that began the regression which is open at the end."""
    last: Step | None = None
    """The last step that was not cleared."""
    closed: Step | None = None
    """The step that began the regression which `last` ended."""


def judge(
    series: Series, changed: Collection[int] = (), rules: Rules | None = None, unread: int | None = None
) -> tuple[Finding | None, Course]:
    """What to say of one figure on the last night, if anything, and how it got there.

    `changed` are the nights on which surroundings changed; from `unread` on (the last one if absent) nights
    have not been told of yet.
    """
    rules = rules or Rules()
    if not series.figure.is_headline:
        rules = replace(rules, chance=rules.chance * STRICTER)
    own = series.own_nights(changed)
    course = follow(series.values, series.floor, series.figure.least, rules, own)
    last = len(series.values) - 1
    fresh = last if unread is None else min(last, bisect_left(series.places, unread))
    return _find(series, course, rules, changed, fresh), course


def alarm_night(step: Step, series: Series, changed: Collection[int]) -> int | None:
    """The night on which a step is told as new, in the series' own count."""
    if step.told != step.confirmed and series.places[step.night] in changed:
        return step.told
    return step.confirmed


def _find(
    series: Series, course: Course, rules: Rules, changed: Collection[int], fresh: int
) -> Finding | None:
    story = _tell(course.steps)
    now = _now(series, course, rules)
    if not story.first or not story.last:
        return _good_news(series, course, story, now, fresh)
    last = story.last
    if len(series.values) - 1 - last.night >= ACCEPTED_AFTER:
        return None
    is_worse, told = last.after > last.before, alarm_night(last, series, changed)
    if is_worse and (told is None or told >= fresh):
        return _finding(series, SUSPECTED if told is None else NEW, last, now, story.first.before)
    return _finding(series, OPEN, story.first, now, story.first.before)


def _now(series: Series, course: Course, rules: Rules) -> float:
    """The present level; that before a single better night, which proves nothing yet."""
    last = course.steps[-1] if course.steps else None
    if last and last.cleared is None and last.confirmed is None and last.after < last.before:
        return last.before
    return rules.level(np.asarray([series.values[night] for night in course.present[-rules.window :]]))


def _good_news(series: Series, course: Course, story: _Story, now: float, fresh: int) -> Finding | None:
    """Only of nights that have not been told of."""
    if course.steps and (course.steps[-1].cleared or 0) >= max(fresh, 1):
        odd = course.steps[-1]
        if odd.after < odd.before:
            return None
        return _finding(series, RECOVERED, replace(odd, before=odd.after), now)
    last = story.last
    if last is None or last.after > last.before or last.confirmed is None or last.confirmed < fresh:
        return None
    return _finding(series, RECOVERED if story.closed else IMPROVED, last, now)


def _tell(steps: list[Step]) -> _Story:
    story = _Story()
    for step in steps:
        is_better = step.after < step.before
        if step.cleared is not None or (is_better and step.confirmed is None):
            continue
        if story.first is None:
            story = _Story(first=None if is_better else step, last=step)
        elif _is_back(step, story.first):
            story = _Story(last=step, closed=story.first)
        else:
            story = replace(story, last=step)
    return story


def _is_back(step: Step, first: Step) -> bool:
    """Near the level before the regression, or nearer to it than to the regression."""
    near = NEAR_SCATTERS * step.scatter * (2 * level_variance(NEAR_NIGHTS)) ** 0.5
    left = step.after - first.before
    return step.after < step.before and left < max(near, MADE_GOOD * (first.after - first.before))


def _finding(series: Series, state: str, step: Step, now: float, anchor: float | None = None) -> Finding:
    figure = series.figure
    return Finding(
        figure=figure.name,
        label=figure.label,
        state=state,
        since=series.places[step.night],
        nights=len(series.values) - step.night,
        before=figure.from_scale(step.before),
        now=figure.from_scale(now),
        change_ratio=figure.change_ratio(step.before, now),
        anchor=figure.from_scale(step.before if anchor is None else anchor),
        scatter_ratio=abs(figure.change_ratio(0.0, step.scatter)),
    )
