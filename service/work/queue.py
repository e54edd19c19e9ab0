"""The durable queue of sessions: DBOS, in tables beside ours, so that both change in one transaction.

A session's leg is one workflow. Its id is made of the session's and the leg's number: queued twice, it runs
once.
"""

import logging
from collections.abc import Iterable, Sequence

import sqlalchemy as sa
from dbos import DBOS, DBOSClient, EnqueueOptions

from service.settings import Settings
from service.store.database import Database
from service.store.rows import SessionRow
from service.work.lock import upgrade_lock

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
            "workflow_id": workflow_id(row.id, row.leg),
            "priority": 1 + HIGHEST_PRIORITY - min(max(row.priority, 0), HIGHEST_PRIORITY),
            "queue_partition_key": f"tenant {row.tenant}",
        }
        self._client.enqueue_in_transaction(conn, options, row.id, row.leg)

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


def workflow_id(session_id: str, leg: int) -> str:
    return f"{session_id}.{leg}"


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
