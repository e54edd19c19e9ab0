"""Follows one figure night by night and detects a change of level.

A likelihood ratio for a step (Willsky and Jones, 1976) with robust parts.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tools.nightly.noise import Values, correlation, level, level_variance, limit, scatter


@dataclass(frozen=True)
class Rules:
    window: int = 28
    """Nights that make the level to compare with."""
    lengths: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 10, 14)
    """Nights that may make a new level."""
    learning: int = 5
    """Nights before anything is told."""
    chance: float = 1e-4
    """Of a false alarm of one test, under normal noise."""
    explained: float = 1.0
    """False alarms that begin on nights of a change of surroundings, all together, for each of the others."""
    confirming: float = 2.0
    """Scatters by which the night after a one-night step must still differ."""
    level: Callable[[Values], float] = level
    scatter: Callable[[Values], float] = scatter


@dataclass(frozen=True)
class Step:
    """A change of level, in the figure's own scale."""

    night: int
    """The first night at the new level."""
    told: int
    """The night on which it was noticed."""
    before: float
    after: float
    scatter: float
    """Of single nights, when it was noticed."""
    confirmed: int | None = None
    """The night on which a second one had shown it; None while it is held."""
    cleared: int | None = None
    """The night on which it turned out to have been one odd night."""


@dataclass
class Course:
    """What became of a figure."""

    steps: list[Step] = field(default_factory=list)
    present: list[int] = field(default_factory=list)
    """The nights of the level that holds at the end."""


@dataclass
class _Walk:
    values: Values
    floor: float
    least: float
    rules: Rules
    changed: list[int]
    """Nights on which the surroundings changed, in order."""
    course: Course = field(default_factory=Course)
    earlier: list[int] | None = None
    """The nights of the level before, while a step of one night is held."""
    known: Values = field(default_factory=lambda: np.empty(0))
    """What nights of earlier levels were off those levels."""

    def add(self, night: int) -> None:
        self._settle(night)
        self.course.present.append(night)
        found = self._find(night)
        if found:
            self._take(found)

    def _settle(self, night: int) -> None:
        """A step of one night is believed when the next night is not back where it was before."""
        if self.earlier is None:
            return
        step = self.course.steps[-1]
        rise = (self.values[night] - step.before) * np.sign(step.after - step.before)
        if rise < self.rules.confirming * step.scatter:
            self.course.steps[-1] = replace(step, cleared=night)
            self.course.present = self.earlier
        else:
            self.course.steps[-1] = replace(step, confirmed=night)
            self._remember(self.earlier)
        self.earlier = None

    def _find(self, night: int) -> Step | None:
        """Of all lengths of a new level the one that stands out most, if any does."""
        best, found = 1.0, None
        for length in self.rules.lengths:
            old = self.course.present[:-length][-self.rules.window :]
            if len(old) < (2 if len(self.known) else self.rules.learning):
                break
            before, after = self._level(old), self._level(self.course.present[-length:])
            if abs(after - before) < self.least:
                continue
            noise, alike, nights = self._noise(old, before)
            variance = level_variance(len(old), alike) + level_variance(length, alike)
            chance = self.rules.chance * self._likelier(night, length)
            score = abs(after - before) / (noise * math.sqrt(variance)) / limit(chance, nights)
            if score > best:
                confirmed = night if length > 1 else None
                best, found = (
                    score,
                    Step(self.course.present[-length], night, before, after, noise, confirmed),
                )
        return found

    def _likelier(self, night: int, length: int) -> float:
        """A step on a night of a change is likelier than on others, the more so the rarer changes are.

        So many times the chance that such nights, as many as are known by then, get the false alarms they
        may have. Not for a single night, which may as well be odd.
        """
        if length == 1 or self.course.present[-length] not in self.changed:
            return 1.0
        nights_with_changes = bisect_right(self.changed, night)
        return max(1.0, self.rules.explained * (night + 1) / nights_with_changes)

    def _level(self, nights: list[int]) -> float:
        return self.rules.level(self.values[nights])

    def _noise(self, old: list[int], before: float) -> tuple[float, float, int]:
        """The scatter of these nights, how much one is like the next, and their number; with those of
        earlier levels where these are few."""
        few = len(old) < self.rules.learning
        own = np.empty(0) if few else self.values[old] - before
        kept = np.concatenate([self.known, own])[-self.rules.window :]
        noise = max(self.rules.scatter(kept), self.floor)
        return noise, correlation(kept, noise), len(kept)

    def _take(self, step: Step) -> None:
        self.course.steps.append(step)
        place = self.course.present.index(step.night)
        old, self.course.present = self.course.present[:place], self.course.present[place:]
        if len(self.course.present) == 1:
            self.earlier = old
        else:
            self._remember(old)

    def _remember(self, old: list[int]) -> None:
        nights = old[-self.rules.window :]
        own = self.values[nights] - self._level(nights)
        self.known = np.concatenate([self.known, own])[-self.rules.window :]


def follow(
    values: Sequence[float],
    floor: float,
    least: float,
    rules: Rules | None = None,
    changed: Collection[int] = (),
) -> Course:
    """`floor` is the least scatter to reckon with, `least` the least change worth telling; on the `changed`
    nights something else changed too, which makes a step likelier."""
    known = np.asarray(values, dtype=np.float64)
    walk = _Walk(known, floor, least, rules or Rules(), sorted(changed))
    for night in range(len(walk.values)):
        walk.add(night)
    return walk.course
