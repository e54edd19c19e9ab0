"""Which nights of a schedule are due, and which of them are run: no database, no clock, only what is given.

A night is due at its planned time, plus its own part of the jitter. Of several that are due, only the last
one can still be of use: a profile is taken in once, and the last night takes in all that are there. A night
planned in a blackout is left out; one that was planned before it and missed is run after it.
"""

import hashlib
from dataclasses import dataclass

from service.nightly.schedules.spec import ScheduleSpec
from service.store.night_runs import CAUGHT_UP, CRON

GRACE_S = 900.0
"""A night that starts so late is in time: a worker was restarted, or the machine was busy."""
HORIZON_S = 40 * 86_400.0
"""Nights longer ago are not looked for."""
MOST_TOLD = 10
"""Missed nights that are kept, each with its reason."""
JUST_BEFORE_S = 0.5
NOBODY = "no worker could start it"


@dataclass(frozen=True)
class Planned:
    at: float
    trigger: str
    skipped: str | None = None
    """Why it is not run."""


@dataclass(frozen=True)
class Due:
    nights: list[Planned]
    considered_until: float
    """What is planned up to here is dealt with."""


def jitter(schedule_id: str, planned_at: float, most_s: float) -> float:
    """The same for every replica: made of the night's identity."""
    digest = hashlib.sha256(f"{schedule_id}/{planned_at:.3f}".encode()).digest()
    return most_s * int.from_bytes(digest[:8], "big") / 2**64


def plan(spec: ScheduleSpec, schedule_id: str, considered_until: float, now_s: float, is_busy: bool) -> Due:
    """A clock that was set back starts at now again: what was run meanwhile is known by its planned time."""
    start = max(min(considered_until, now_s), now_s - HORIZON_S)
    due, until = _due(spec, schedule_id, start, now_s)
    wanted = [planned for planned in due if not spec.blackout_at(planned)]
    if wanted and spec.blackout_at(now_s):
        return Due([], start)  # it was planned before the blackout, and is missed until that is over
    final = _judge(spec, schedule_id, wanted[-1], now_s, is_busy) if wanted else None
    word = f"missed: {NOBODY}" if final is None or final.skipped else "made good by the run of a later night"
    told = [_skipped(spec, planned, word) for planned in due if not final or planned != final.at]
    return Due(sorted([*told[-MOST_TOLD:], *([final] if final else [])], key=lambda one: one.at), until)


def _due(spec: ScheduleSpec, schedule_id: str, start: float, now_s: float) -> tuple[list[float], float]:
    """The nights whose time has come, and up to where that is all."""
    due: list[float] = []
    for planned in spec.clock.between(start, now_s):
        if planned + jitter(schedule_id, planned, spec.jitter_s) > now_s:
            return due, max(start, planned - JUST_BEFORE_S)
        due.append(planned)
    return due, now_s


def _skipped(spec: ScheduleSpec, planned: float, word: str) -> Planned:
    blackout = spec.blackout_at(planned)
    return Planned(planned, CRON, f"blackout: {blackout.told}" if blackout else word)


def _judge(spec: ScheduleSpec, schedule_id: str, planned: float, now_s: float, is_busy: bool) -> Planned:
    late_s = now_s - planned - jitter(schedule_id, planned, spec.jitter_s)
    trigger = CRON if late_s <= GRACE_S else CAUGHT_UP
    if trigger == CAUGHT_UP and spec.missed == "skip":
        return Planned(planned, trigger, f"missed by {late_s / 60:.0f} minutes: {NOBODY}")
    if is_busy and spec.overlap == "skip":
        return Planned(planned, trigger, "the run before was still under way")
    return Planned(planned, trigger)
