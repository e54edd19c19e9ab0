"""Follows one figure night by night and detects changes of its level; and what points at a step of the step
time before the step time itself proves it: recorded changes, and terms of the step that grew.

A likelihood ratio for a step (Willsky and Jones, 1976) with robust estimators. The scatter is estimated from
the nights on both sides of a possible step and from what real histories scatter by. Hints lower the proof
that a step on their night needs; none is an alarm by itself.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tools.model.student import student_limit
from tools.nightly.night import Night
from tools.nightly.noise import (
    USUAL_SCATTER,
    FigureValues,
    correlation,
    degrees_of_freedom,
    level,
    level_variance,
    scatter,
    with_prior,
)

EXPLAINED_ALARMS = 0.3
"""False alarms on nights with a recorded change, all together, per false alarm on other nights."""
TERM_ODDS = 300.0
"""A term that grew leaves open whether another one shrank as much, and little else."""
EXPLAINED_CHANGE = 2.0
"""The largest step of the step time that a term explains, in the term's own growth."""
TERM_CHANCE = 0.2
"""Factor on the chance of a false alarm for the terms: there are several of them."""
ALIKE_CHANCE = 0.2
"""Factor on the chance of a false alarm if terms are known and none of them grew against the rest: all terms
slow down alike on a busy machine, seldom by a cause that stays."""
MIN_TERM_CHANGE = 0.005
"""Share of the step."""


@dataclass(frozen=True)
class DetectionRules:
    window: int = 28
    """Nights that make the level to compare with."""
    correlation_nights: int = 56
    """Nights that make the autocorrelation."""
    lengths: tuple[int, ...] = (1, 2, 3, 4, 5, 7, 10, 14)
    """Numbers of nights that may make a new level."""
    min_nights: int = 5
    """Nights before anything is reported."""
    false_alarm_chance: float = 1e-3
    """Chance in a single test, under normal noise."""
    repeated_step_chance: float = 0.02
    """Factor on it for each step of the last `drift_nights` that is smaller than `max_drift_scatters`: noise
    that stays for some nights looks like such steps, one after the other, and each takes away from the
    scatter that the next one is measured by."""
    drift_nights: int = 56
    max_drift_scatters: float = 5.0
    max_chance: float = 0.1
    """Limit for a single test, whatever points at the night."""
    confirming_scatters: float = 2.0
    """The night after a one-night step must still differ by this much."""
    max_scatters: float = 3.0
    max_share: float = 1.25
    """Nights of a longer step count as if they differed by at most this many scatters, or by this share of
    what their level must reach if that is more: one odd night among two cannot carry the other."""
    level: Callable[[FigureValues], float] = level
    scatter: Callable[[FigureValues], float] = scatter


@dataclass(frozen=True)
class Hint:
    """Something else points at a step on this night: a recorded change, or a term of the step that grew."""

    night: int
    known: int
    """The night from which on this is known."""
    odds: float
    """How much likelier a step is on that night than on others."""
    max_change: float = math.inf
    """The largest step that it explains."""


@dataclass(frozen=True)
class LevelStep:
    """A change of level, in the figure's own scale."""

    night: int
    """The first night at the new level."""
    noticed: int
    """The night on which it was detected."""
    before: float
    after: float
    scatter: float
    """Scatter of single nights when it was detected."""
    confirmed: int | None = None
    """The night on which a second one showed it too; None while it rests on one night."""
    cleared: int | None = None
    """The night on which it turned out to have been a single outlier."""


@dataclass
class LevelHistory:
    """The steps of a figure, and the nights of its present level."""

    steps: list[LevelStep] = field(default_factory=list)
    present: list[int] = field(default_factory=list)
    deviations: FigureValues = field(default_factory=lambda: np.empty(0))
    """How far nights of earlier levels lay from those levels."""


@dataclass
class _StepDetector:
    values: FigureValues
    usual_scatter: float
    min_change: float
    rules: DetectionRules
    hints: Sequence[Hint]
    history: LevelHistory = field(default_factory=LevelHistory)
    previous: list[int] | None = None
    """The nights of the level before, while a step rests on a single night."""

    def add(self, night: int) -> None:
        if self.previous is not None:
            self._resolve_single_night(night, self.previous)
        self.history.present.append(night)
        if step := self._find_step(night):
            self.history.steps.append(step)
            start = self.history.present.index(step.night)
            old, self.history.present = self.history.present[:start], self.history.present[start:]
            if len(self.history.present) == 1:
                self.previous = old
            else:
                self._remember(old)

    def _resolve_single_night(self, night: int, previous: list[int]) -> None:
        """A step of one night is confirmed unless the next night is back at the old level."""
        step = self.history.steps[-1]
        rise = (self.values[night] - step.before) * np.sign(step.after - step.before)
        if rise < self.rules.confirming_scatters * step.scatter:
            self.history.steps[-1] = replace(step, cleared=night)
            self.history.present = [*previous, step.night]
        else:
            self.history.steps[-1] = replace(step, confirmed=night)
            self._remember(previous)
        self.previous = None

    def _find_step(self, night: int) -> LevelStep | None:
        """The most significant of all possible lengths of a new level, if any is significant."""
        # The usual lengths, and those that begin on a night that something points at.
        hinted = {night - hint.night + 1 for hint in self.hints if hint.known <= night}
        lengths = {*self.rules.lengths, *(n for n in hinted if 1 <= n <= self.rules.lengths[-1])}
        best_score, best = 1.0, None
        for length in sorted(lengths):
            old, new = self.history.present[:-length][-self.rules.window :], self.history.present[-length:]
            if len(old) < (2 if len(self.history.deviations) else self.rules.min_nights):
                break
            before, after = self._level(old), self._level(new)
            if abs(after - before) < self.min_change:
                continue
            noise, autocorrelation, freedom = self._noise(old, before, new, after)
            variance = level_variance(len(old), autocorrelation) + level_variance(length, autocorrelation)
            chance = self._chance(night, length, after - before)
            needed = noise * math.sqrt(variance) * student_limit(chance, round(freedom, 1))
            most = max(self.rules.max_scatters * noise, self.rules.max_share * needed)
            if length > 1:  # outliers are moved in: one very slow night among two is no step
                clipped = np.clip(self.values[new], before - most, before + most)
                score = abs(self.rules.level(clipped) - before) / needed
            else:
                score = abs(after - before) / needed
            if score > best_score:
                confirmed = night if length > 1 else None
                best_score, best = score, LevelStep(new[0], night, before, after, noise, confirmed)
        return best

    def _chance(self, night: int, length: int, change: float) -> float:
        """A single night gets no bonus from hints: it may as well be an outlier."""
        # Recent steps may have been slow noise; a large one was not.
        num_drifts = sum(
            step.cleared is None
            and night - step.night < self.rules.drift_nights
            and abs(step.after - step.before) < self.rules.max_drift_scatters * step.scatter
            for step in self.history.steps
        )
        chance = self.rules.false_alarm_chance * self.rules.repeated_step_chance**num_drifts
        first = self.history.present[-length]
        hints = [
            hint
            for hint in self.hints
            if hint.night == first and hint.known <= night and abs(change) <= hint.max_change
        ]
        if length == 1 or not hints:
            return chance
        return min(chance * max(1.0, *(hint.odds for hint in hints)), self.rules.max_chance)

    def _level(self, nights: list[int]) -> float:
        return self.rules.level(self.values[nights])

    def _noise(
        self, old: list[int], before: float, new: list[int], after: float
    ) -> tuple[float, float, float]:
        """Scatter, autocorrelation and degrees of freedom; with earlier levels if these are few."""
        # An autocorrelation takes more nights to know than a level or a scatter does.
        longer = self.history.present[: -len(new)][-self.rules.correlation_nights :]
        own = np.empty(0) if len(old) < self.rules.min_nights else self.values[longer] - before
        every = np.concatenate([self.history.deviations, own])[-self.rules.correlation_nights :]
        nights, num_levels = every[-self.rules.window :], 1
        spread = self.rules.scatter(nights)
        autocorrelation = correlation(every, max(spread, self.usual_scatter))
        if len(new) > 2:
            nights, num_levels = np.concatenate([nights, self.values[new] - after]), 2
            spread = self.rules.scatter(nights)
        freedom = degrees_of_freedom(len(nights), num_levels)
        noise, freedom = with_prior(spread, freedom, self.usual_scatter)
        return noise, autocorrelation, freedom

    def _remember(self, old: list[int]) -> None:
        nights = old[-self.rules.window :]
        # A level of few nights lies nearer to them than the true one does.
        lost = math.sqrt(len(nights) / max(len(nights) - 1, 1))
        own = lost * (self.values[nights] - self._level(nights))
        self.history.deviations = np.concatenate([self.history.deviations, own])[-self.rules.window :]


def detect_steps(
    values: Sequence[float],
    usual_scatter: float,
    min_change: float,
    rules: DetectionRules | None = None,
    hints: Sequence[Hint] = (),
) -> LevelHistory:
    """`usual_scatter` is what such figures scatter by: it counts as much as a few nights do."""
    figures = np.asarray(values, dtype=np.float64)
    detector = _StepDetector(figures, usual_scatter, min_change, rules or DetectionRules(), hints)
    for night in range(len(figures)):
        detector.add(night)
    return detector.history


def recorded_hints(changed: Collection[int]) -> list[Hint]:
    """Nights on which the environment changed; the rarer they are, the more each one counts."""
    nights = sorted(changed)
    return [
        Hint(night, night, EXPLAINED_ALARMS * (night + 1) / (position + 1))
        for position, night in enumerate(nights)
    ]


def step_time_evidence(
    nights: Sequence[Night], changed: Collection[int], rules: DetectionRules
) -> tuple[DetectionRules, list[Hint]]:
    """By which rules the step time is judged, and what points at a step.

    With terms on most nights, a step that none of them shows and no recorded change explains needs more
    proof.
    """
    recorded = recorded_hints(changed)
    if 2 * sum(bool(night.terms_s) for night in nights) <= len(nights):
        return rules, recorded
    strict = replace(rules, false_alarm_chance=ALIKE_CHANCE * rules.false_alarm_chance)
    explained = [replace(hint, odds=hint.odds / ALIKE_CHANCE) for hint in recorded]
    return strict, [*explained, *term_hints(nights, recorded, rules)]


def term_hints(nights: Sequence[Night], recorded: Sequence[Hint], rules: DetectionRules) -> list[Hint]:
    """Nights from which on a term of the step takes longer, measured against the rest of the step.

    What slows the whole step on some nights (a shared machine, a hot summer) slows every term: against the
    rest of the step a term scatters less than the step time does.
    """
    strict = replace(rules, false_alarm_chance=TERM_CHANCE * rules.false_alarm_chance)
    found = []
    for name in sorted({name for night in nights for name in night.terms_s}):
        places = [place for place, night in enumerate(nights) if name in night.terms_s]
        terms_s = np.asarray([nights[place].terms_s[name] for place in places])
        rests_s = np.asarray([sum(nights[place].terms_s.values()) for place in places]) - terms_s
        if min(rests_s) <= 0 or min(terms_s) < 0:
            continue
        step_s = float(np.median(terms_s + rests_s))
        shares = terms_s / rests_s * (float(np.median(rests_s)) / step_s)
        usual = USUAL_SCATTER * math.sqrt(float(np.median(terms_s)) / step_s)
        hints = hints_among(recorded, places)
        for step in detect_steps(shares.tolist(), usual, MIN_TERM_CHANGE, strict, hints).steps:
            if step.after > step.before and step.confirmed is not None:
                most = EXPLAINED_CHANGE * (step.after - step.before)
                found.append(Hint(places[step.night], places[step.confirmed], TERM_ODDS, most))
    return found


def hints_among(hints: Sequence[Hint], nights: Sequence[int]) -> list[Hint]:
    """With nights of the workload as places in a series that leaves some of them out."""
    return [
        replace(hint, night=bisect_left(nights, hint.night), known=bisect_left(nights, hint.known))
        for hint in hints
        if hint.night in nights
    ]
