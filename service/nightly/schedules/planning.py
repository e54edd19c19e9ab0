"""Which nights of a schedule are due, and which of them are run: no database, no clock, only what is given.

A night is due at its planned time, plus its own part of the jitter. Of several that are due, only the last
one can still be of use: a profile is taken in once, and the last night takes in all that are there.
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
    due: list[float] = []
    until = now_s
    for planned in spec.clock.between(start, now_s):
        if planned + jitter(schedule_id, planned, spec.jitter_s) > now_s:
            until = max(start, _before(planned))
            break
        due.append(planned)
    if not due:
        return Due([], until)
    *missed, last = due
    final = _judge(spec, schedule_id, last, now_s, is_busy)
    word = "made good by the run of a later night" if not final.skipped else "missed: no worker was there"
    told = [Planned(one, CRON, word) for one in missed[-MOST_TOLD:]]
    return Due([*told, final], until)


def _before(planned: float) -> float:
    """Not yet this one."""
    return planned - 0.5


def _judge(spec: ScheduleSpec, schedule_id: str, planned: float, now_s: float, is_busy: bool) -> Planned:
    late_s = now_s - planned - jitter(schedule_id, planned, spec.jitter_s)
    trigger = CRON if late_s <= GRACE_S else CAUGHT_UP
    blackout = spec.blackout_at(planned) or spec.blackout_at(now_s)
    if blackout:
        return Planned(planned, trigger, f"blackout: {blackout.told}")
    if trigger == CAUGHT_UP and spec.missed == "skip":
        return Planned(planned, trigger, f"missed by {late_s / 60:.0f} minutes: no worker was there")
    if is_busy and spec.overlap == "skip":
        return Planned(planned, trigger, "the run before was still under way")
    return Planned(planned, trigger)
