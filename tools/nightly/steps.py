"""Follows one figure night by night and detects changes of its level.

A likelihood ratio for a step (Willsky and Jones, 1976) with robust estimators.
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
    """Numbers of nights that may make a new level."""
    min_nights: int = 5
    """Nights before anything is reported."""
    false_alarm_chance: float = 1e-4
    """Of a single test, under normal noise."""
    explained_alarms: float = 1.0
    """False alarms on nights with a change of environment, all together, per false alarm on other nights."""
    confirming_scatters: float = 2.0
    """The night after a one-night step must still differ by this much."""
    level: Callable[[Values], float] = level
    scatter: Callable[[Values], float] = scatter


@dataclass(frozen=True)
class Step:
    """A change of level, in the figure's own scale."""

    night: int
    """The first night at the new level."""
    noticed: int
    """The night on which it was detected."""
    before: float
    after: float
    scatter: float
    """Of single nights, when it was detected."""
    confirmed: int | None = None
    """The night on which a second one showed it too; None while it rests on one night."""
    cleared: int | None = None
    """The night on which it turned out to have been a single outlier."""


@dataclass
class LevelHistory:
    """The steps of a figure, and the nights of its present level."""

    steps: list[Step] = field(default_factory=list)
    present: list[int] = field(default_factory=list)


@dataclass
class _StepDetector:
    values: Values
    min_scatter: float
    min_change: float
    rules: Rules
    changed: list[int]
    """Nights on which the environment changed, in order."""
    history: LevelHistory = field(default_factory=LevelHistory)
    previous: list[int] | None = None
    """The nights of the level before, while a step rests on a single night."""
    deviations: Values = field(default_factory=lambda: np.empty(0))
    """Of nights of earlier levels, from those levels."""

    def add(self, night: int) -> None:
        self._resolve_single_night(night)
        self.history.present.append(night)
        step = self._find_step(night)
        if step:
            self._start_level(step)

    def _resolve_single_night(self, night: int) -> None:
        """A step of one night is confirmed unless the next night is back at the old level."""
        if self.previous is None:
            return
        step = self.history.steps[-1]
        rise = (self.values[night] - step.before) * np.sign(step.after - step.before)
        if rise < self.rules.confirming_scatters * step.scatter:
            self.history.steps[-1] = replace(step, cleared=night)
            self.history.present = self.previous
        else:
            self.history.steps[-1] = replace(step, confirmed=night)
            self._remember(self.previous)
        self.previous = None

    def _find_step(self, night: int) -> Step | None:
        """The most significant of all possible lengths of a new level, if any is significant."""
        best_score, best = 1.0, None
        for length in self.rules.lengths:
            old = self.history.present[:-length][-self.rules.window :]
            if len(old) < (2 if len(self.deviations) else self.rules.min_nights):
                break
            before, after = self._level(old), self._level(self.history.present[-length:])
            if abs(after - before) < self.min_change:
                continue
            noise, autocorrelation, num_nights = self._noise(old, before)
            variance = level_variance(len(old), autocorrelation) + level_variance(length, autocorrelation)
            chance = self.rules.false_alarm_chance * self._prior_odds(night, length)
            score = abs(after - before) / (noise * math.sqrt(variance)) / limit(chance, num_nights)
            if score > best_score:
                first, confirmed = self.history.present[-length], night if length > 1 else None
                best_score, best = score, Step(first, night, before, after, noise, confirmed)
        return best

    def _prior_odds(self, night: int, length: int) -> float:
        """How much likelier a step is on a night with a change of environment; the rarer changes, the more.

        All nights with a change together get `explained_alarms` times the false alarms of the others. A
        single night gets no such bonus: it may as well be an outlier.
        """
        if length == 1 or self.history.present[-length] not in self.changed:
            return 1.0
        nights_with_changes = bisect_right(self.changed, night)
        return max(1.0, self.rules.explained_alarms * (night + 1) / nights_with_changes)

    def _level(self, nights: list[int]) -> float:
        return self.rules.level(self.values[nights])

    def _noise(self, old: list[int], before: float) -> tuple[float, float, int]:
        """Scatter, autocorrelation and number of nights; with earlier levels if these are few."""
        too_few = len(old) < self.rules.min_nights
        own = np.empty(0) if too_few else self.values[old] - before
        recent = np.concatenate([self.deviations, own])[-self.rules.window :]
        noise = max(self.rules.scatter(recent), self.min_scatter)
        return noise, correlation(recent, noise), len(recent)

    def _start_level(self, step: Step) -> None:
        self.history.steps.append(step)
        start = self.history.present.index(step.night)
        old, self.history.present = self.history.present[:start], self.history.present[start:]
        if len(self.history.present) == 1:
            self.previous = old
        else:
            self._remember(old)

    def _remember(self, old: list[int]) -> None:
        nights = old[-self.rules.window :]
        own = self.values[nights] - self._level(nights)
        self.deviations = np.concatenate([self.deviations, own])[-self.rules.window :]


def detect_steps(
    values: Sequence[float],
    min_scatter: float,
    min_change: float,
    rules: Rules | None = None,
    changed: Collection[int] = (),
) -> LevelHistory:
    """On the `changed` nights something else changed too, which makes a step likelier."""
    figures = np.asarray(values, dtype=np.float64)
    detector = _StepDetector(figures, min_scatter, min_change, rules or Rules(), sorted(changed))
    for night in range(len(figures)):
        detector.add(night)
    return detector.history
