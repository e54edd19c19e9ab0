"""Nothing is lost: sessions of dead workers are put back, those that the queue forgot are queued again."""

import logging

import sqlalchemy as sa

from service.store.database import UPGRADE_LOCK, Database
from service.store.lifecycle import next_leg
from service.store.states import BUSY
from service.store.tables import sessions
from service.store.workers import forget_dead, list_living, now_s
from service.work.queue import Queue, workflow_id

TAKEOVER_LOCK = UPGRADE_LOCK + 1
"""As an advisory lock: one survivor at a time takes over, so that none puts back what another has begun."""
PAGE = 500
FORGET_AFTER_LEASES = 100

_log = logging.getLogger(__name__)


def take_over(database: Database, queue: Queue, lease_s: float) -> list[str]:
    """Puts back what was begun by workers that have not been heard of for a lease.

    On PostgreSQL only: with SQLite there is one worker, and DBOS gives it back what it had when it starts.
    """
    with database.begin() as conn:
        if not conn.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(TAKEOVER_LOCK))):
            return []
        living = {worker.id for worker in list_living(conn, lease_s)}
        forget_dead(conn, FORGET_AFTER_LEASES * lease_s)
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
        known = queue.unfinished(workflow_id(id, leg) for id, leg in page)
        lost = [(id, leg) for id, leg in page if workflow_id(id, leg) not in known]
        found += [id for id, leg in lost if _queue_again(database, queue, id, leg)]
    if found:
        _log.warning("queued %d sessions again whose workflow was lost", len(found))
    return found


def _quiet(database: Database, quiet_s: float, after: str) -> list[tuple[str, int]]:
    with database.read() as conn:
        query = sa.select(sessions.c.id, sessions.c.leg).where(
            sessions.c.state.in_(BUSY),
            sessions.c.updated_at < now_s(conn) - quiet_s,
            sessions.c.id > after,
        )
        return [(row.id, row.leg) for row in conn.execute(query.order_by(sessions.c.id).limit(PAGE))]


def _queue_again(database: Database, queue: Queue, id: str, leg: int) -> bool:
    with database.begin() as conn:
        row = next_leg(conn, id, leg)
        if row is None:
            return False
        queue.enqueue(conn, row)
        return True
