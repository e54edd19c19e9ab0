"""Which nights are due, caught up or skipped; each is recorded and enqueued once."""

import hashlib
import logging
from dataclasses import dataclass
from functools import partial

import sqlalchemy as sa

from service.db.engine import Database
from service.db.lifecycle import list_quiet, now_s
from service.db.models import night_runs
from service.db.schedules import (
    CAUGHT_UP,
    CRON,
    MANUAL,
    RunRow,
    ScheduleRow,
    add_run,
    claim_run,
    delete_old,
    get_schedule,
    is_busy,
    list_active,
    lock_active,
    next_dispatch,
    set_considered,
    set_run,
)
from service.errors import ConflictError
from service.nightly.config import parse
from service.nightly.schedule import ScheduleSpec
from service.worker.jobs import JobKind, JobQueue
from tools.errors import AsapError

GRACE_S = 900.0
"""A night that starts at most this late is in time: a worker was restarted, or the machine was busy."""
HORIZON_S = 40 * 86_400.0
"""Nights planned longer ago are ignored."""
MAX_REPORTED_SKIPS = 10
"""Missed nights that are recorded, each with its reason."""
JUST_BEFORE_S = 0.5
NOBODY = "no worker could start it"
_log = logging.getLogger(__name__)
NIGHTS: JobKind[RunRow] = JobKind(
    queue="nights",
    workflow="run_night",
    prefix="night.",
    claim=claim_run,
    check_fence=set_run,
    next_dispatch=next_dispatch,
    list_quiet=partial(list_quiet, night_runs),
    partition=lambda run: f"schedule {run.schedule_id}",
)
NightQueue = JobQueue[RunRow]


def night_queue(database: Database) -> NightQueue:
    return JobQueue(database, NIGHTS)


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


def jitter(schedule_id: str, planned_at: float, max_s: float) -> float:
    """The same for every replica: derived from the night's identity."""
    digest = hashlib.sha256(f"{schedule_id}/{planned_at:.3f}".encode()).digest()
    return max_s * int.from_bytes(digest[:8], "big") / 2**64


def plan(spec: ScheduleSpec, schedule_id: str, considered_until: float, now_s: float, is_busy: bool) -> Due:
    """If the clock was set back, starts again at now: the runs already made are known by planned time."""
    start = max(min(considered_until, now_s), now_s - HORIZON_S)
    due, until = _due(spec, schedule_id, start, now_s)
    not_blacked_out = [planned for planned in due if not spec.blackout_at(planned)]
    if not_blacked_out and spec.blackout_at(now_s):
        return Due([], start)  # it was planned before the blackout, and is missed until that is over
    final = _judge(spec, schedule_id, not_blacked_out[-1], now_s, is_busy) if not_blacked_out else None
    reason = (
        f"missed: {NOBODY}" if final is None or final.skipped else "superseded by the run of a later night"
    )
    skipped = [_skipped(spec, planned, reason) for planned in due if not final or planned != final.at]
    nights = [*skipped[-MAX_REPORTED_SKIPS:], *([final] if final else [])]
    return Due(sorted(nights, key=lambda night: night.at), until)


def _due(spec: ScheduleSpec, schedule_id: str, start: float, now_s: float) -> tuple[list[float], float]:
    """The nights whose time has come, and up to where that is all."""
    due: list[float] = []
    for planned in spec.clock.between(start, now_s):
        if planned + jitter(schedule_id, planned, spec.jitter_s) > now_s:
            return due, max(start, planned - JUST_BEFORE_S)
        due.append(planned)
    return due, now_s


def _skipped(spec: ScheduleSpec, planned: float, reason: str) -> Planned:
    blackout = spec.blackout_at(planned)
    return Planned(planned, CRON, f"blackout: {blackout.description}" if blackout else reason)


def _judge(spec: ScheduleSpec, schedule_id: str, planned: float, now_s: float, is_busy: bool) -> Planned:
    late_s = now_s - planned - jitter(schedule_id, planned, spec.jitter_s)
    trigger = CRON if late_s <= GRACE_S else CAUGHT_UP
    if trigger == CAUGHT_UP and spec.missed == "skip":
        return Planned(planned, trigger, f"missed by {late_s / 60:.0f} minutes: {NOBODY}")
    if is_busy and spec.overlap == "skip":
        return Planned(planned, trigger, "the run before was still under way")
    return Planned(planned, trigger)


def tick(database: Database, queue: NightQueue, clock_s: float | None = None) -> list[RunRow]:
    """The runs that were queued. A schedule that cannot be read shows its reason; the others still run."""
    with database.read() as conn:
        active = list_active(conn)
    queued = []
    for id in active:
        try:
            queued += _tick_one(database, queue, id, clock_s)
        except AsapError as error:
            _show_reason(database, id, str(error))
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
            run = add_run(
                conn, id, schedule.tenant, night.at, night.trigger, schedule.definition, night.skipped
            )
            if run and not night.skipped:
                queue.enqueue(conn, run)
                queued.append(run)
        return queued


def _show_reason(database: Database, id: str, reason: str) -> None:
    with database.begin() as conn:
        schedule = lock_active(conn, id)
        if schedule and schedule.reason != reason:
            _log.warning("schedule %s does not run: %s", schedule.name, reason)
            set_considered(conn, id, schedule.considered_until, reason)


def run_now(conn: sa.Connection, queue: NightQueue, tenant: str, id: str) -> RunRow:
    """A manual run: also of a paused schedule, also in a blackout."""
    schedule: ScheduleRow = get_schedule(conn, tenant, id, lock=True)
    parse(ScheduleSpec, schedule.definition)
    moment_s = database_clock(conn)
    run = add_run(conn, schedule.id, tenant, moment_s, MANUAL, schedule.definition)
    if run is None:
        raise ConflictError("there is a run of this very moment already", field="planned_at")
    queue.enqueue(conn, run)
    return run


def delete_old_runs(queue: NightQueue, kept_s: float) -> None:
    with queue.database.begin() as conn:
        runs = delete_old(conn, now_s(conn) - kept_s)
    queue.forget(runs)


def database_clock(conn: sa.Connection) -> float:
    return float(conn.scalar(sa.select(now_s(conn))) or 0.0)
