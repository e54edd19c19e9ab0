"""Books the nights that are due: each planned time once, however often one looks, whatever the clock does.

The schedule's row is locked, the run is unique by schedule and planned time, and it is queued in the same
transaction. The clock is the database's, so that replicas agree on it.
"""

import logging

import sqlalchemy as sa

from service.errors import ConflictError
from service.nightly.definition import parse
from service.nightly.schedules.planning import plan
from service.nightly.schedules.queue import NightQueue
from service.nightly.schedules.spec import ScheduleSpec
from service.store.database import Database
from service.store.night_runs import MANUAL, RunRow, add_run, is_busy
from service.store.schedules import ScheduleRow, get_schedule, list_active, lock_active, set_considered
from service.store.workers import now_s
from tools.errors import AsapError

_log = logging.getLogger(__name__)


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
    """A run that somebody asked for, paused or not, blackout or not."""
    schedule: ScheduleRow = get_schedule(conn, tenant, id, lock=True)
    parse(ScheduleSpec, schedule.definition)
    moment_s = database_clock(conn)
    run = add_run(conn, schedule.id, tenant, moment_s, MANUAL, schedule.definition)
    if run is None:
        raise ConflictError("a run of this very moment is there already", field="planned_at")
    queue.enqueue(conn, run)
    return run


def database_clock(conn: sa.Connection) -> float:
    return float(conn.scalar(sa.select(now_s(conn))) or 0.0)
