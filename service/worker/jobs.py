"""The job engine on DBOS: durable queues, leases, heartbeats, claims under a fence, takeover, reconciliation.

A kind of job (sessions; nights of schedules) says how its rows are claimed and enqueued; the rest is here.
At least once: a job may be dispatched several times, and every write is fenced by its claim.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, EnqueueOptions

from service.db import lifecycle
from service.db.engine import (
    CONNECTION_ERRORS,
    UPGRADE_LOCK,
    Database,
    is_outage,
    retry_transaction,
    upgrade_lock,
)
from service.db.lifecycle import delete_dead, heartbeat, leave, list_living, now_s
from service.db.models import SessionRow, sessions
from service.db.sessions import lock_session
from service.errors import FencedError, HandBackError
from service.settings import Settings

_log = logging.getLogger(__name__)


class Loop:
    def __init__(self, name: str, every_s: float, work: Callable[[], object]) -> None:
        self.name, self._every_s, self._work = name, every_s, work
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stopping.set()
        if self.is_running():
            self._thread.join(timeout_s)

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work()
            except Exception:  # noqa: BLE001 - the next turn may succeed
                _log.warning("%s failed and will be tried again", self.name, exc_info=True)
            self._stopping.wait(self._every_s)


EMBEDDED = "embedded"
"""With SQLite there is one worker; under a fixed name DBOS itself recovers what it had started."""


class Lease:
    def __init__(self, database: Database, lease_s: float) -> None:
        self.lease_s = lease_s
        self.host, self.pid = socket.gethostname(), os.getpid()
        self.worker = EMBEDDED if database.is_sqlite else f"{self.host}-{self.pid}-{uuid.uuid4().hex[:8]}"
        self._database = database
        self._lock = threading.Lock()
        self._renewed_at = float("-inf")

    def renew(self) -> None:
        before = time.monotonic()
        with self._database.begin() as conn:
            heartbeat(conn, self.worker, self.host, self.pid)
        with self._lock:
            self._renewed_at = before

    def is_held(self) -> bool:
        with self._lock:
            return time.monotonic() - self._renewed_at < self.lease_s

    def give_up(self) -> None:
        """What this worker still runs may be taken over at once."""
        with self._lock:
            self._renewed_at = float("-inf")
        with self._database.begin() as conn:
            leave(conn, self.worker)


class JobRow(Protocol):
    """A row that can be claimed and dispatched."""

    @property
    def id(self) -> str: ...

    @property
    def tenant(self) -> str: ...

    @property
    def dispatch_no(self) -> int: ...

    @property
    def fence(self) -> int: ...


RowT = TypeVar("RowT", bound=JobRow)
Quiet = Callable[[sa.Connection, sa.ColumnElement[float], str], list[tuple[str, int]]]


@dataclass(frozen=True)
class JobKind(Generic[RowT]):
    """How jobs of one kind are stored; the engine needs nothing else about them."""

    queue: str
    workflow: str
    prefix: str
    """Of the ids of its workflows."""
    claim: Callable[[sa.Connection, str, str, int], RowT | None]
    """By id, worker and dispatch number; None if that dispatch is over."""
    check_fence: Callable[[sa.Connection, RowT], object]
    """Locks the row, and raises FencedError if another worker has claimed it since."""
    next_dispatch: Callable[[sa.Connection, str, int], RowT | None]
    list_quiet: Quiet
    partition: Callable[[RowT], str]
    """Jobs of one partition share a limit on how many run at a time."""
    priority: Callable[[RowT], int] | None = None
    """1 runs first."""

    def workflow_id(self, id: str, dispatch_no: int) -> str:
        return f"{self.prefix}{id}.{dispatch_no}"


HIGHEST_PRIORITY = 9
SESSIONS: JobKind[SessionRow] = JobKind(
    queue="sessions",
    workflow="run_session",
    prefix="",
    claim=lifecycle.claim,
    check_fence=lambda conn, row: lock_session(conn, row.id, row.fence),
    next_dispatch=lifecycle.next_dispatch,
    list_quiet=partial(lifecycle.list_quiet, sessions),
    partition=lambda row: f"tenant {row.tenant}",
    priority=lambda row: 1 + HIGHEST_PRIORITY - min(max(row.priority, 0), HIGHEST_PRIORITY),
)

APPLICATION = "asap"
VERSION = "1"
"""Fixed: a job started by one release is finished by the next; its progress is in the checkpoint."""
UNFINISHED = ("ENQUEUED", "PENDING", "DELAYED")


class JobQueue(Generic[RowT]):
    """Usable in any process, whether it runs jobs or not."""

    def __init__(self, database: Database, kind: JobKind[RowT]) -> None:
        quiet_dbos_logs()
        self.database, self.kind = database, kind
        self._client = DBOSClient(
            system_database_engine=database.engine,
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )

    def enqueue(self, conn: sa.Connection, row: RowT) -> None:
        """In the transaction that changed the row."""
        options: EnqueueOptions = {
            "workflow_name": self.kind.workflow,
            "queue_name": self.kind.queue,
            "workflow_id": self.kind.workflow_id(row.id, row.dispatch_no),
            "queue_partition_key": self.kind.partition(row),
        }
        if self.kind.priority:
            options["priority"] = self.kind.priority(row)
        self._client.enqueue_in_transaction(conn, options, row.id, row.dispatch_no)

    def requeue(self, id: str, dispatch_no: int) -> bool:
        """False if the job has gone on meanwhile."""
        with self.database.begin() as conn:
            row = self.kind.next_dispatch(conn, id, dispatch_no)
            if row is not None:
                self.enqueue(conn, row)
        return row is not None

    def set_limits(self, per_worker: int, per_partition: int, poll_s: float) -> None:
        self._client.register_queue(
            self.kind.queue,
            worker_concurrency=per_worker,
            partition_concurrency=per_partition,
            polling_interval_sec=poll_s,
        )

    def running(self) -> dict[str, str]:
        """Workflows that were started and have not ended, each with its worker."""
        started = self._client.list_workflows(
            status="PENDING", queue_name=self.kind.queue, load_input=False, load_output=False
        )
        return {workflow.workflow_id: workflow.executor_id or "" for workflow in started}

    def unfinished(self, ids: Iterable[str]) -> set[str]:
        """Those of the workflows that will still do something."""
        return self.known(ids, UNFINISHED)

    def known(self, ids: Iterable[str], states: Sequence[str] | None = None) -> set[str]:
        """Those of the workflows that the queue has a record of."""
        wanted = list(states) if states else None
        workflows = self._client.list_workflows(
            workflow_ids=list(ids), status=wanted, load_input=False, load_output=False
        )
        return {workflow.workflow_id for workflow in workflows}

    def put_back(self, ids: Iterable[str]) -> None:
        """To be started again, by any worker."""
        self._client.resume_workflows(list(ids), queue_name=self.kind.queue)

    def forget(self, jobs: Iterable[tuple[str, int]]) -> None:
        """Deletes the queue's records of these jobs: id and number of dispatches."""
        ids = [self.kind.workflow_id(id, number) for id, last in jobs for number in range(1, last + 1)]
        if ids:
            self._client.delete_workflows(ids)

    def close(self) -> None:
        self._client.destroy()


def session_queue(database: Database) -> JobQueue[SessionRow]:
    return JobQueue(database, SESSIONS)


@dataclass(frozen=True)
class Jobs(Generic[RowT]):
    """A kind of job as one worker runs it."""

    queue: JobQueue[RowT]
    run: Callable[[RowT], None]
    per_worker: int
    per_partition: int
    poll_s: float
    loops: tuple[Loop, ...] = ()
    """What else must happen regularly for this kind."""


def run_dispatch(
    queue: JobQueue[RowT], worker: str, run: Callable[[RowT], None], id: str, dispatch_no: int
) -> None:
    """Returns when the job has ended or waits, is handed back, or belongs to another worker.

    `run` ends the job itself, also if it fails; it raises only for what must stop this worker from going on.
    """
    database, kind = queue.database, queue.kind
    row = retry_transaction(database, lambda conn: kind.claim(conn, id, worker, dispatch_no))
    if row is None:
        return
    try:
        run(row)
    except FencedError as error:
        _log.warning("stopped: %s", error)
    except HandBackError as error:
        _hand_back(queue, row, str(error))
    except Exception as error:
        if not is_outage(error):
            raise
        _hand_back(queue, row, f"database unavailable: {error}")


def _hand_back(queue: JobQueue[RowT], row: RowT, reason: str) -> None:
    """A new dispatch does what is left, unless another worker has taken the job over."""
    _log.warning("%s %s handed back: %s", queue.kind.workflow, row.id, reason, extra={"job": row.id})

    def dispatch_again(conn: sa.Connection) -> None:
        queue.kind.check_fence(conn, row)
        again = queue.kind.next_dispatch(conn, row.id, row.dispatch_no)
        if again is not None:
            queue.enqueue(conn, again)

    try:
        retry_transaction(queue.database, dispatch_again)
    except FencedError as error:
        _log.info("nothing to hand back: %s", error)


def quiet_dbos_logs() -> None:
    """DBOS prints by itself unless its logger has a handler, and more than an operator needs."""
    logger = logging.getLogger("dbos")
    logger.setLevel(logging.WARNING)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def prepare(settings: Settings, database: Database) -> None:
    """Makes or upgrades all tables; safe when several processes start at once."""
    quiet_dbos_logs()
    _await_database(database)
    with upgrade_lock(settings):
        database.upgrade()
        DBOS.migrate(settings.database)


START_WAIT_S = 300.0
MAX_START_PAUSE_S = 10.0


def _await_database(database: Database) -> None:
    """A server that starts with this process, or is restarted just then, is waited for."""
    ends_at, pause_s = time.monotonic() + START_WAIT_S, 0.5
    while not database.is_sqlite:
        try:
            with database.read() as conn:
                conn.execute(sa.select(1))
                return
        except CONNECTION_ERRORS as error:
            is_refusal = "authentication" in str(error) or "does not exist" in str(error)
            if is_refusal or time.monotonic() > ends_at:
                raise
            _log.warning("the database does not answer yet; asked again in %.1f s", pause_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_START_PAUSE_S)


TAKEOVER_LOCK = UPGRADE_LOCK + 1
"""An advisory lock: one survivor at a time takes over, so that none requeues what another has started."""
DELETE_AFTER_LEASES = 100


def take_over(queue: JobQueue[RowT], lease_s: float) -> list[str]:
    """Requeues what was started by workers without a heartbeat for a lease.

    On PostgreSQL only: with SQLite there is one worker, and DBOS returns to it what it had when it starts.
    """
    with queue.database.begin() as conn:
        if not conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(TAKEOVER_LOCK))):
            return []
        alive = {worker.id for worker in list_living(conn, lease_s)}
        delete_dead(conn, DELETE_AFTER_LEASES * lease_s)
        lost = [id for id, worker in queue.running().items() if worker not in alive]
        if lost:
            _log.warning("taking over %d jobs (%s) of dead workers", len(lost), queue.kind.queue)
            queue.put_back(lost)
        return lost


def reconcile(queue: JobQueue[RowT], quiet_s: float) -> list[str]:
    """Enqueues busy jobs again whose workflow has ended or does not exist.

    That happens if a worker dies between two writes, or the queue was tampered with.
    """
    again: list[str] = []
    last = ""
    while page := _quiet(queue, quiet_s, last):
        last = page[-1][0]
        names = {queue.kind.workflow_id(*job): job for job in page}
        known = queue.unfinished(names)
        again += [job[0] for name, job in names.items() if name not in known and queue.requeue(*job)]
    if again:
        _log.warning("enqueued %d jobs (%s) again whose workflow was lost", len(again), queue.kind.queue)
    return again


def _quiet(queue: JobQueue[RowT], quiet_s: float, after: str) -> list[tuple[str, int]]:
    with queue.database.read() as conn:
        return queue.kind.list_quiet(conn, now_s(conn) - quiet_s, after)
