"""Which nights are due, caught up or skipped; each is recorded and enqueued once."""

import hashlib
import logging
from dataclasses import dataclass

import sqlalchemy as sa

from service.db.engine import Database
from service.errors import ConflictError
from service.jobs.claims import JobKind
from service.jobs.engine import JobQueue
from service.jobs.workers import now_s
from service.schedules.calendar import ScheduleSpec
from service.schedules.config import parse
from service.schedules.model import CAUGHT_UP, CRON, MANUAL, RunRow, Trigger, night_runs
from service.schedules.store import (
    add_run,
    delete_old,
    find_locked_run,
    get_schedule,
    is_busy,
    list_active,
    lock_active,
    move_run,
    set_considered,
)
from tools.errors import AsapError

GRACE_S = 900.0
"""A night that starts at most this late is in time: a worker was restarted, or the machine was busy."""
HORIZON_S = 40 * 86_400.0
"""Nights planned longer ago are ignored."""
MAX_REPORTED_SKIPS = 10
"""Missed nights that are recorded, each with its reason."""
JUST_BEFORE_S = 0.5
NOBODY = "no worker could start it"
MAX_CLAIMS = 10
NIGHTS: JobKind[RunRow] = JobKind(
    queue="nights",
    workflow="run_night",
    prefix="night.",
    table=night_runs,
    lock=find_locked_run,
    move=move_run,
    max_claims=MAX_CLAIMS,
    gave_up={"reason": f"{MAX_CLAIMS} workers began this run and none ended it; see their logs"},
    partition=lambda run: f"schedule {run.schedule_id}",
)
NightQueue = JobQueue[RunRow]

_log = logging.getLogger(__name__)


def night_queue(database: Database) -> NightQueue:
    return JobQueue(database, NIGHTS)


@dataclass(frozen=True)
class Planned:
    at: float
    trigger: Trigger
    skipped: str | None = None
    """Why it is not run."""


@dataclass(frozen=True)
class Due:
    nights: list[Planned]
    considered_until: float
    """What is planned up to here is dealt with."""


def jitter(schedule_id: str, planned_at: float, max_s: float) -> float:
    """The same for every replica: derived from the night's identity."""
    digest = hashlib.sha256(f"{schedule_id}/{planned_at:.3f}".encode()).digest()
    return max_s * int.from_bytes(digest[:8], "big") / 2**64


def plan(spec: ScheduleSpec, schedule_id: str, considered_until: float, now_s: float, is_busy: bool) -> Due:
    """The last night that is due is run; the others are skipped, each with its reason.

    If the clock was set back, starts again at now: the runs already made are known by planned time.
    """
    start = max(min(considered_until, now_s), now_s - HORIZON_S)
    due: list[float] = []
    until = now_s
    for planned in spec.clock.between(start, now_s):
        if planned + jitter(schedule_id, planned, spec.jitter_s) > now_s:
            until = max(start, planned - JUST_BEFORE_S)
            break
        due.append(planned)
    not_blacked_out = [planned for planned in due if not spec.blackout_at(planned)]
    if not_blacked_out and spec.blackout_at(now_s):
        return Due([], start)  # it was planned before the blackout, and is missed until that is over
    final = None
    if not_blacked_out:
        last = not_blacked_out[-1]
        late_s = now_s - last - jitter(schedule_id, last, spec.jitter_s)
        trigger: Trigger = CRON if late_s <= GRACE_S else CAUGHT_UP
        why = None
        if trigger == CAUGHT_UP and spec.missed == "skip":
            why = f"missed by {late_s / 60:.0f} minutes: {NOBODY}"
        elif is_busy and spec.overlap == "skip":
            why = "the run before was still under way"
        final = Planned(last, trigger, why)
    is_superseded = final and not final.skipped
    usual = "superseded by the run of a later night" if is_superseded else f"missed: {NOBODY}"
    skipped = []
    for planned in due:
        if not final or planned != final.at:
            blackout = spec.blackout_at(planned)
            skipped.append(Planned(planned, CRON, f"blackout: {blackout.description}" if blackout else usual))
    nights = [*skipped[-MAX_REPORTED_SKIPS:], *([final] if final else [])]
    return Due(sorted(nights, key=lambda night: night.at), until)


def tick(database: Database, queue: NightQueue, clock_s: float | None = None) -> list[RunRow]:
    """The runs that were queued. A schedule that cannot be read shows its reason; the others still run."""
    with database.read() as conn:
        active = list_active(conn)
    queued = []
    for id in active:
        try:
            queued += _tick_one(database, queue, id, clock_s)
        except AsapError as error:
            with database.begin() as conn:
                schedule = lock_active(conn, id)
                if schedule and schedule.reason != str(error):
                    _log.warning("schedule %s does not run: %s", schedule.name, error)
                    set_considered(conn, id, schedule.considered_until, str(error))
    return queued


def _tick_one(database: Database, queue: NightQueue, id: str, clock_s: float | None) -> list[RunRow]:
    with database.begin() as conn:
        schedule = lock_active(conn, id)
        if schedule is None:
            return []
        moment_s = database_clock(conn) if clock_s is None else clock_s
        spec = parse(ScheduleSpec, schedule.definition)
        due = plan(spec, id, schedule.considered_until, moment_s, is_busy(conn, id))
        set_considered(conn, id, due.considered_until, None)
        queued = []
        for night in due.nights:
            run = add_run(conn, schedule, night.at, night.trigger, night.skipped)
            if run and not night.skipped:
                queue.enqueue(conn, run)
                queued.append(run)
        return queued


def run_now(conn: sa.Connection, queue: NightQueue, tenant: str, id: str) -> RunRow:
    """A manual run: also of a paused schedule, also in a blackout."""
    schedule = get_schedule(conn, tenant, id, lock=True)
    parse(ScheduleSpec, schedule.definition)
    run = add_run(conn, schedule, database_clock(conn), MANUAL)
    if run is None:
        raise ConflictError("there is a run of this very moment already", path="planned_at")
    queue.enqueue(conn, run)
    return run


def delete_old_runs(queue: NightQueue, kept_s: float) -> None:
    with queue.database.begin() as conn:
        runs = delete_old(conn, now_s(conn) - kept_s)
    queue.forget(runs)


def database_clock(conn: sa.Connection) -> float:
    return float(conn.scalar(sa.select(now_s(conn))) or 0.0)
