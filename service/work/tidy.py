"""What a session leaves behind outside our tables: the graph's checkpoints and the queue's records.

A session that has ended needs its last checkpoint only (a person may still decide about it), one that failed
needs none (a retry begins anew), and of one that was deleted nothing may stay.
"""

import logging
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from service.store.database import Database
from service.store.erasures import Erasure, close_erasure, list_erasures
from service.store.states import CANCELLED, COMPLETED, FAILED
from service.work.queue import Queue, workflow_id

Saver = BaseCheckpointSaver[Any]
OLDER = "thread_id = ? AND checkpoint_id < (SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ?)"

_log = logging.getLogger(__name__)


def thread_of(session_id: str, attempt: int) -> str:
    """Each attempt is a thread of the graph's own."""
    return f"{session_id}.{attempt}"


def tidy_up(saver: Saver, thread: str, state: str) -> None:
    """Whatever goes wrong here, the session has ended well."""
    try:
        if state == COMPLETED:
            _keep_latest(saver, thread)
        elif state in (FAILED, CANCELLED):
            saver.delete_thread(thread)
    except Exception:  # noqa: BLE001 - see above
        _log.warning("checkpoints of %s stay", thread, exc_info=True)


def erase_deleted(database: Database, queue: Queue, saver: Saver) -> list[str]:
    """Again until it is done: a worker may die in between."""
    with database.read() as conn:
        deleted = list_erasures(conn)
    for one in deleted:
        _erase(queue, saver, one)
        with database.begin() as conn:
            close_erasure(conn, one.session_id)
    return [one.session_id for one in deleted]


def _erase(queue: Queue, saver: Saver, deleted: Erasure) -> None:
    for attempt in range(1, deleted.attempts + 1):
        saver.delete_thread(thread_of(deleted.session_id, attempt))
    queue.forget(workflow_id(deleted.session_id, leg) for leg in range(1, deleted.legs + 1))


def _keep_latest(saver: Saver, thread: str) -> None:
    """LangGraph can do this on PostgreSQL; on SQLite we do what it would."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    if not isinstance(saver, SqliteSaver):
        saver.prune([thread], strategy="keep_latest")
        return
    with saver.cursor() as cursor:
        cursor.execute(f"DELETE FROM writes WHERE {OLDER}", (thread, thread))
        cursor.execute(f"DELETE FROM checkpoints WHERE {OLDER}", (thread, thread))
