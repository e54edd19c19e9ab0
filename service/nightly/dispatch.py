"""Which nights are due, caught up or skipped; each is recorded and enqueued once."""

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa
from dbos import DBOSClient, EnqueueOptions

from service.db.engine import Database
from service.db.lifecycle import list_living, now_s
from service.db.schedules import (
    CAUGHT_UP,
    CRON,
    MANUAL,
    RunRow,
    ScheduleRow,
    add_run,
    delete_old,
    get_schedule,
    is_busy,
    list_active,
    list_quiet,
    lock_active,
    next_dispatch,
    set_considered,
)
from service.errors import ConflictError
from service.nightly.config import parse
from service.nightly.schedule import ScheduleSpec
from service.worker.jobs import APPLICATION, UNFINISHED
from tools.errors import AsapError

QUEUE = "nights"
WORKFLOW = "run_night"
POLL_S = 0.5
AT_A_TIME = 2
"""Nights that one worker runs; most of their time they wait for sessions."""
TAKEOVER_LOCK = 0x41534152
"""As an advisory lock: one survivor at a time takes over."""


class NightQueue:
    """Usable in any process, whether it runs nights or not."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._client = DBOSClient(
            system_database_engine=database.engine,
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )

    def enqueue(self, conn: sa.Connection, run: RunRow) -> None:
        """In the transaction that booked the run."""
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": workflow_id(run.id, run.dispatch_no),
            "queue_partition_key": f"schedule {run.schedule_id}",
        }
        self._client.enqueue_in_transaction(conn, options, run.id, run.dispatch_no)

    def set_limits(self) -> None:
        self._client.register_queue(
            QUEUE, worker_concurrency=AT_A_TIME, partition_concurrency=1, polling_interval_sec=POLL_S
        )

    def take_over(self, lease_s: float) -> list[str]:
        """Puts back what was begun by workers that are gone; with SQLite there is one, and DBOS does it."""
        if self._database.is_sqlite:
            return []
        with self._database.begin() as conn:
            if not conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(TAKEOVER_LOCK))):
                return []
            living = {worker.id for worker in list_living(conn, lease_s)}
            begun = self._list(status="PENDING", queue_name=QUEUE)
            lost = [id for id, worker in begun.items() if worker not in living]
            if lost:
                self._client.resume_workflows(lost, queue_name=QUEUE)
            return lost

    def reconcile(self, quiet_s: float) -> list[str]:
        """Queues runs again whose workflow is ended or not there: a worker died between two writes."""
        with self._database.read() as conn:
            quiet = list_quiet(conn, now_s(conn) - quiet_s)
        if not quiet:
            return []
        known = self._list(workflow_ids=[workflow_id(*one) for one in quiet], status=list(UNFINISHED))
        lost = [(id, dispatch_no) for id, dispatch_no in quiet if workflow_id(id, dispatch_no) not in known]
        return [id for id, dispatch_no in lost if self.queue_again(id, dispatch_no)]

    def queue_again(self, id: str, dispatch_no: int) -> bool:
        with self._database.begin() as conn:
            run = next_dispatch(conn, id, dispatch_no)
            if run is None:
                return False
            self.enqueue(conn, run)
            return True

    def forget(self, runs: Iterable[tuple[str, int]]) -> None:
        """The queue's own records of runs that are removed: id and number of legs."""
        ids = [workflow_id(id, dispatch_no) for id, legs in runs for dispatch_no in range(1, legs + 1)]
        if ids:
            self._client.delete_workflows(ids)

    def forget_old(self, kept_s: float) -> None:
        with self._database.begin() as conn:
            runs = delete_old(conn, now_s(conn) - kept_s)
        self.forget(runs)

    def close(self) -> None:
        self._client.destroy()

    def _list(self, **filters: object) -> dict[str, str]:
        found = self._client.list_workflows(**filters, load_input=False, load_output=False)  # type: ignore[arg-type]
        return {one.workflow_id: one.executor_id or "" for one in found}


def workflow_id(run_id: str, dispatch_no: int) -> str:
    return f"night.{run_id}.{dispatch_no}"


GRACE_S = 900.0
"""A night that starts so late is in time: a worker was restarted, or the machine was busy."""
HORIZON_S = 40 * 86_400.0
"""Nights longer ago are not looked for."""
MAX_REPORTED_SKIPS = 10
"""Missed nights that are recorded, each with its reason."""
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
    word = f"missed: {NOBODY}" if final is None or final.skipped else "superseded by the run of a later night"
    told = [_skipped(spec, planned, word) for planned in due if not final or planned != final.at]
    return Due(
        sorted([*told[-MAX_REPORTED_SKIPS:], *([final] if final else [])], key=lambda one: one.at), until
    )


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
    return Planned(planned, CRON, f"blackout: {blackout.description}" if blackout else word)


def _judge(spec: ScheduleSpec, schedule_id: str, planned: float, now_s: float, is_busy: bool) -> Planned:
    late_s = now_s - planned - jitter(schedule_id, planned, spec.jitter_s)
    trigger = CRON if late_s <= GRACE_S else CAUGHT_UP
    if trigger == CAUGHT_UP and spec.missed == "skip":
        return Planned(planned, trigger, f"missed by {late_s / 60:.0f} minutes: {NOBODY}")
    if is_busy and spec.overlap == "skip":
        return Planned(planned, trigger, "the run before was still under way")
    return Planned(planned, trigger)


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
