"""Counts what is found in synthetic histories: precision and recall by size, false alarms in quiet months."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tools.nightly.attribution import attribute, nights_with_changes
from tools.nightly.figures import MFU, STEP_TIME, Series, list_series
from tools.nightly.findings import STRICTER, alarm_night
from tools.nightly.night import Night
from tools.nightly.steps import Rules, Step, follow
from tools.nightly.synthetic import Injected, Noise, quiet_history, with_regression

MONTH = 30
LEARNT = 21
"""Nights before a regression is injected."""
WATCHED = 14
"""Nights after it in which an alarm counts as having found it."""
WEEK = 7

Alarm = tuple[int, Step]
"""The night on which it is raised."""


@dataclass(frozen=True)
class Quiet:
    """Of histories in which nothing happened, per workload and month."""

    months: float
    alarms: float
    """Of the step time: what changes the exit status."""
    suspicions: float
    """Slow nights that the next one cleared."""
    notices: float
    """Of the other figures."""


@dataclass(frozen=True)
class Found:
    """Of histories with one regression each."""

    size_ratio: float
    histories: int
    two_nights: float
    week: float
    fortnight: float
    """Shares that were told in so many nights."""
    precision: float
    """Share of all alarms of the step time that are the regression's."""
    term_right: float
    """Share of the found ones whose grown part of the step comes first."""
    cause_right: float
    """Share of the found ones with a recorded cause that comes first."""


def score_quiet(random: np.random.Generator, noise: Noise, months: int, rules: Rules | None = None) -> Quiet:
    """Each month is a history of its own, after the nights in which its level is learnt."""
    alarms = suspicions = notices = 0
    for _ in range(months):
        nights = quiet_history(random, LEARNT + MONTH, noise)
        alarms += sum(night >= LEARNT for night, _ in alarms_of(nights, rules))
        suspicions += _suspicions(nights, rules)
        notices += _notices(nights, rules)
    return Quiet(months, alarms / months, suspicions / months, notices / months)


def score_found(
    random: np.random.Generator, noise: Noise, size_ratio: float, histories: int, rules: Rules | None = None
) -> Found:
    """Of every second regression the cause is recorded: a change of surroundings on its night."""
    delays: list[int] = []
    alarms = terms = causes = recorded = 0
    for number in range(histories):
        night = int(random.integers(LEARNT, LEARNT + WEEK))
        quiet = quiet_history(random, LEARNT + WEEK + WATCHED, noise)
        case = with_regression(random, quiet, night, size_ratio, is_recorded=number % 2 == 0)
        raised = alarms_of(case.nights, rules)
        alarms += len(raised)
        found = next((one for one in raised if night <= one[0] < night + WATCHED), None)
        if found:
            delays.append(found[0] - night)
            recorded += case.kind is not None
            term, cause = _attributed(case, found)
            terms, causes = terms + term, causes + cause
    return Found(
        size_ratio,
        histories,
        sum(delay < 2 for delay in delays) / histories,
        sum(delay < WEEK for delay in delays) / histories,
        len(delays) / histories,
        len(delays) / alarms if alarms else 1.0,
        terms / max(len(delays), 1),
        causes / max(recorded, 1),
    )


def alarms_of(nights: Sequence[Night], rules: Rules | None = None) -> list[Alarm]:
    """Every night on which somebody is told that the step time got worse."""
    series, changed = list_series(nights)[0], nights_with_changes(nights)
    steps = _steps(series, rules, changed)
    raised = [(alarm_night(step, series, changed), step) for step in steps if step.after > step.before]
    return [(night, step) for night, step in raised if night is not None]


def _steps(series: Series, rules: Rules | None, changed: set[int]) -> list[Step]:
    own = series.own_nights(changed)
    return follow(series.values, series.floor, series.figure.least, rules, own).steps


def _suspicions(nights: Sequence[Night], rules: Rules | None) -> int:
    steps = _steps(list_series(nights)[0], rules, nights_with_changes(nights))
    return sum(
        step.cleared is not None and step.told >= LEARNT and step.after > step.before for step in steps
    )


def _notices(nights: Sequence[Night], rules: Rules | None) -> int:
    """MFU says what the step time says."""
    strict = replace(rules or Rules(), chance=(rules or Rules()).chance * STRICTER)
    changed, count = nights_with_changes(nights), 0
    for series in list_series(nights):
        if series.figure.name not in (STEP_TIME, MFU):
            steps = _steps(series, strict, changed)
            count += sum(step.after > step.before and (step.confirmed or 0) >= LEARNT for step in steps)
    return count


def _attributed(case: Injected, found: Alarm) -> tuple[bool, bool]:
    """As it is told on the night of the alarm."""
    night, step = found
    why = attribute(case.nights[: night + 1], step.night)
    term = why.terms[0].term if why.terms else None
    cause = why.changes[0].kind if why.changes else None
    return term == case.term, case.kind is not None and cause == case.kind
