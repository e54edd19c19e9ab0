"""The job engine on DBOS: durable queues, dispatches run under a claim, takeover, reconciliation.

At least once: a job may be dispatched several times, and every write is fenced by its claim.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, EnqueueOptions
from psycopg.pq import PGconn, Ping

from service.db.engine import Database, retry_transaction
from service.db.locks import TAKEOVER_LOCK, upgrade_lock
from service.db.outages import CONNECTION_ERRORS, is_outage
from service.errors import FencedError, HandBackError
from service.jobs.claims import JobKind, RowT
from service.jobs.loop import Loop
from service.jobs.workers import delete_dead, list_living, now_s
from service.settings import Settings

APPLICATION = "asap"
VERSION = "1"
"""Fixed: a job started by one release is finished by the next; its progress is in the checkpoint."""
UNFINISHED = ("ENQUEUED", "PENDING", "DELAYED")
START_WAIT_S = 300.0
MAX_START_PAUSE_S = 10.0
MAX_REFUSALS = 3
DELETE_AFTER_LEASES = 100

_log = logging.getLogger(__name__)


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
        return self.recorded(ids, UNFINISHED)

    def recorded(self, ids: Iterable[str], states: Sequence[str] = ()) -> set[str]:
        """Those of the workflows that the queue has a record of, in these states or in any."""
        workflows = self._client.list_workflows(
            workflow_ids=list(ids), status=list(states) or None, load_input=False, load_output=False
        )
        return {workflow.workflow_id for workflow in workflows}

    def forget(self, jobs: Iterable[tuple[str, int]]) -> None:
        """Deletes the queue's records of these jobs: id and number of dispatches."""
        ids = [self.kind.workflow_id(id, number) for id, last in jobs for number in range(1, last + 1)]
        if ids:
            self._client.delete_workflows(ids)

    def take_over(self, lease_s: float) -> list[str]:
        """Requeues what was started by workers without a heartbeat for a lease.

        On PostgreSQL only: with SQLite there is one worker, and DBOS returns to it what it had at its start.
        One survivor at a time takes over, so that none requeues what another has started.
        """
        with self.database.begin() as conn:
            if not conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(TAKEOVER_LOCK))):
                return []
            alive = {worker.id for worker in list_living(conn, lease_s)}
            delete_dead(conn, DELETE_AFTER_LEASES * lease_s)
            lost = [id for id, worker in self.running().items() if worker not in alive]
            if lost:
                _log.warning("taking over %d jobs (%s) of dead workers", len(lost), self.kind.queue)
                # To be started again, by any worker.
                self._client.resume_workflows(lost, queue_name=self.kind.queue)
            return lost

    def reconcile(self, quiet_s: float) -> list[str]:
        """Enqueues busy jobs again whose workflow has ended or does not exist.

        That happens if a worker dies between two writes, or the queue was tampered with.
        """
        again, last = list[str](), ""
        while True:
            with self.database.read() as conn:
                page = self.kind.list_quiet(conn, now_s(conn) - quiet_s, last)
            if not page:
                break
            last = page[-1][0]
            jobs = {self.kind.workflow_id(*job): job for job in page}
            unfinished = self.unfinished(jobs)
            again += [job[0] for id, job in jobs.items() if id not in unfinished and self.requeue(*job)]
        if again:
            _log.warning("enqueued %d jobs (%s) again whose workflow was lost", len(again), self.kind.queue)
        return again

    def close(self) -> None:
        self._client.destroy()


@dataclass(frozen=True)
class Jobs(Generic[RowT]):
    """A kind of job as one worker runs it."""

    queue: JobQueue[RowT]
    run: Callable[[RowT], None]
    """Ends the job itself, also if it fails; raises only for what must stop this worker from going on."""
    per_worker: int
    per_partition: int
    poll_s: float
    loops: tuple[Loop, ...] = ()
    """What else must happen regularly for this kind."""

    def run_dispatch(self, worker: str, id: str, dispatch_no: int) -> None:
        """Returns when the job has ended or waits, is handed back, or belongs to another worker."""
        kind = self.queue.kind
        row = retry_transaction(self.queue.database, lambda conn: kind.claim(conn, id, worker, dispatch_no))
        if row is None:
            return
        try:
            self.run(row)
        except FencedError as error:
            _log.warning("stopped: %s", error)
        except HandBackError as error:
            self._hand_back(row, str(error))
        except Exception as error:
            if not is_outage(error):
                raise
            self._hand_back(row, f"database unavailable: {error}")

    def _hand_back(self, row: RowT, reason: str) -> None:
        """A new dispatch does what is left, unless another worker has taken the job over."""
        kind = self.queue.kind
        _log.warning("%s %s handed back: %s", kind.workflow, row.id, reason, extra={"job": row.id})

        def dispatch_again(conn: sa.Connection) -> None:
            kind.check_fence(conn, row)
            again = kind.next_dispatch(conn, row.id, row.dispatch_no)
            if again is not None:
                self.queue.enqueue(conn, again)

        try:
            retry_transaction(self.queue.database, dispatch_again)
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
    ends_at = time.monotonic() + START_WAIT_S
    while True:
        if settings.database_url:
            _await_database(database, settings.database_url)
        try:
            with upgrade_lock(settings):
                database.upgrade()
                DBOS.migrate(settings.database)
        except Exception as error:  # it went away since
            if database.is_sqlite or not is_outage(error) or time.monotonic() > ends_at:
                raise
            _log.warning("database unavailable while its tables were prepared: %s", error)
        else:
            return


def _await_database(database: Database, url: str) -> None:
    """A server that starts with this process, or is restarted just then, is waited for.

    One that runs and refuses us (a wrong password, no such database) is not: libpq has no code for that, but
    its ping tells whether a server accepts connections, whoever asks.
    """
    ends_at, pause_s, refusals = time.monotonic() + START_WAIT_S, 0.5, 0
    while True:
        try:
            with database.read() as conn:
                conn.execute(sa.select(1))
                return
        except CONNECTION_ERRORS:
            refusals = refusals + 1 if PGconn.ping(url.encode()) == Ping.OK else 0
            if refusals >= MAX_REFUSALS or time.monotonic() > ends_at:
                raise
            _log.warning("the database does not answer yet; asked again in %.1f s", pause_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_START_PAUSE_S)
