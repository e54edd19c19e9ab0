"""The durable queue of nights: DBOS, beside that of sessions.

Beside it, so that a night that waits for its sessions never keeps one from running. A night's leg is one
workflow; of one schedule one runs at a time.
"""

from collections.abc import Iterable

import sqlalchemy as sa
from dbos import DBOSClient, EnqueueOptions

from service.store.database import Database
from service.store.night_runs import RunRow, delete_old, list_quiet, next_leg
from service.store.workers import list_living, now_s
from service.work.queue import APPLICATION, UNFINISHED

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
            "workflow_id": workflow_id(run.id, run.leg),
            "queue_partition_key": f"schedule {run.schedule_id}",
        }
        self._client.enqueue_in_transaction(conn, options, run.id, run.leg)

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
        lost = [(id, leg) for id, leg in quiet if workflow_id(id, leg) not in known]
        return [id for id, leg in lost if self.queue_again(id, leg)]

    def queue_again(self, id: str, leg: int) -> bool:
        with self._database.begin() as conn:
            run = next_leg(conn, id, leg)
            if run is None:
                return False
            self.enqueue(conn, run)
            return True

    def forget(self, runs: Iterable[tuple[str, int]]) -> None:
        """The queue's own records of runs that are removed: id and number of legs."""
        ids = [workflow_id(id, leg) for id, legs in runs for leg in range(1, legs + 1)]
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


def workflow_id(run_id: str, leg: int) -> str:
    return f"night.{run_id}.{leg}"
