"""The durable queue (DBOS) and who may work on it: leases, heartbeat loops, takeover from dead workers,
reconciliation.
"""

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, EnqueueOptions

from service.db.engine import UPGRADE_LOCK, Database, upgrade_lock
from service.db.lifecycle import delete_dead, heartbeat, leave, list_living, next_dispatch, now_s
from service.db.models import BUSY, SessionRow, sessions
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
            except Exception:  # noqa: BLE001 - whatever it was, the next turn may do better
                _log.warning("%s failed and will be tried again", self.name, exc_info=True)
            self._stopping.wait(self._every_s)


EMBEDDED = "embedded"
"""With SQLite there is one worker; under a fixed name DBOS itself recovers what it had begun."""


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
        """What this worker still has may be taken over at once."""
        with self._lock:
            self._renewed_at = float("-inf")
        with self._database.begin() as conn:
            leave(conn, self.worker)


APPLICATION = "asap"
VERSION = "1"
"""Fixed: a session begun by one release is finished by the next; its progress is in the checkpoint."""
QUEUE = "sessions"
WORKFLOW = "run_session"
POLL_S = 0.1
HIGHEST_PRIORITY = 9
UNFINISHED = ("ENQUEUED", "PENDING", "DELAYED")


class Queue:
    """Usable in any process, whether it runs sessions or not."""

    def __init__(self, database: Database) -> None:
        speak_in_our_logs()
        self._client = DBOSClient(
            system_database_engine=database.engine,
            application_name=APPLICATION,
            lazy=True,
            retry_connection_errors=False,
        )

    def enqueue(self, conn: sa.Connection, row: SessionRow) -> None:
        """In the transaction that changed the session. DBOS runs low numbers first."""
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": QUEUE,
            "workflow_id": workflow_id(row.id, row.dispatch_no),
            "priority": 1 + HIGHEST_PRIORITY - min(max(row.priority, 0), HIGHEST_PRIORITY),
            "queue_partition_key": f"tenant {row.tenant}",
        }
        self._client.enqueue_in_transaction(conn, options, row.id, row.dispatch_no)

    def set_limits(self, worker_sessions: int, tenant_sessions: int) -> None:
        """How many run at a time in one worker, and of one tenant in all of them."""
        self._client.register_queue(
            QUEUE,
            worker_concurrency=worker_sessions,
            partition_concurrency=tenant_sessions,
            polling_interval_sec=POLL_S,
        )

    def running(self) -> dict[str, str]:
        """The workflows that were begun and not ended, each with the worker that began it."""
        found = self._client.list_workflows(
            status="PENDING", queue_name=QUEUE, load_input=False, load_output=False
        )
        return {one.workflow_id: one.executor_id or "" for one in found}

    def unfinished(self, ids: Iterable[str]) -> set[str]:
        """Those of the workflows that will still do something."""
        return self.known(ids, UNFINISHED)

    def known(self, ids: Iterable[str], states: Sequence[str] | None = None) -> set[str]:
        """Those of the workflows of which there is a record."""
        wanted = list(states) if states else None
        found = self._client.list_workflows(
            workflow_ids=list(ids), status=wanted, load_input=False, load_output=False
        )
        return {one.workflow_id for one in found}

    def put_back(self, ids: Iterable[str]) -> None:
        """To be begun again, by whoever comes first."""
        self._client.resume_workflows(list(ids), queue_name=QUEUE)

    def forget(self, ids: Iterable[str]) -> None:
        """The queue's own records of sessions that are deleted."""
        self._client.delete_workflows(list(ids))

    def check(self) -> None:
        """Raises where the queue cannot be reached."""
        self._client.check_connection()

    def close(self) -> None:
        self._client.destroy()


def workflow_id(session_id: str, dispatch_no: int) -> str:
    return f"{session_id}.{dispatch_no}"


def speak_in_our_logs() -> None:
    """DBOS prints on its own unless its logger has a handler, and tells more than anybody wants to know."""
    logger = logging.getLogger("dbos")
    logger.setLevel(logging.WARNING)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def prepare(settings: Settings, database: Database) -> None:
    """Makes or upgrades every table that sessions need; safe when several processes start at once."""
    speak_in_our_logs()
    with upgrade_lock(settings):
        database.upgrade()
        DBOS.migrate(settings.database)


TAKEOVER_LOCK = UPGRADE_LOCK + 1
"""As an advisory lock: one survivor at a time takes over, so that none puts back what another has begun."""
PAGE = 500
FORGET_AFTER_LEASES = 100


def take_over(database: Database, queue: Queue, lease_s: float) -> list[str]:
    """Puts back what was begun by workers that have not been heard of for a lease.

    On PostgreSQL only: with SQLite there is one worker, and DBOS gives it back what it had when it starts.
    """
    with database.begin() as conn:
        if not conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(TAKEOVER_LOCK))):
            return []
        living = {worker.id for worker in list_living(conn, lease_s)}
        delete_dead(conn, FORGET_AFTER_LEASES * lease_s)
        lost = [id for id, worker in queue.running().items() if worker not in living]
        if lost:
            _log.warning("taking over %d sessions of workers that are gone", len(lost))
            queue.put_back(lost)
        return lost


def reconcile(database: Database, queue: Queue, quiet_s: float) -> list[str]:
    """Queues sessions again that are to run, and whose workflow is ended or not there.

    That happens when a worker dies between two writes, or somebody tampers with the queue.
    """
    found: list[str] = []
    last = ""
    while page := _quiet(database, quiet_s, last):
        last = page[-1][0]
        known = queue.unfinished(workflow_id(id, dispatch_no) for id, dispatch_no in page)
        lost = [(id, dispatch_no) for id, dispatch_no in page if workflow_id(id, dispatch_no) not in known]
        found += [id for id, dispatch_no in lost if _queue_again(database, queue, id, dispatch_no)]
    if found:
        _log.warning("queued %d sessions again whose workflow was lost", len(found))
    return found


def _quiet(database: Database, quiet_s: float, after: str) -> list[tuple[str, int]]:
    with database.read() as conn:
        query = sa.select(sessions.c.id, sessions.c.dispatch_no).where(
            sessions.c.state.in_(BUSY),
            sessions.c.updated_at < now_s(conn) - quiet_s,
            sessions.c.id > after,
        )
        return [(row.id, row.dispatch_no) for row in conn.execute(query.order_by(sessions.c.id).limit(PAGE))]


def _queue_again(database: Database, queue: Queue, id: str, dispatch_no: int) -> bool:
    with database.begin() as conn:
        row = next_dispatch(conn, id, dispatch_no)
        if row is None:
            return False
        queue.enqueue(conn, row)
        return True
