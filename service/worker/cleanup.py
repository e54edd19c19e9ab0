"""What sessions leave behind: old checkpoints, queue records of deleted sessions, trial jobs that no session
waits for.
"""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from langgraph.checkpoint.base import BaseCheckpointSaver

from service.db.engine import Database
from service.db.models import CANCELLED, COMPLETED, FAILED, TERMINAL, SessionRow, sessions
from service.db.sessions import Cleanup, finish_cleanup, list_cleanups
from service.worker.jobs import JobQueue
from tools.errors import AsapError
from tools.launch.folder import JobFolder
from tools.launch.status import Intent
from tools.trials.run import LaunchedTrials

Saver = BaseCheckpointSaver[Any]
OLDER = "thread_id = ? AND checkpoint_id < (SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = ?)"

_log = logging.getLogger(__name__)


def thread_of(session_id: str, attempt: int) -> str:
    """Each attempt is a thread of the graph's own."""
    return f"{session_id}.{attempt}"


def prune_checkpoints(saver: Saver, thread: str, state: str) -> None:
    """Whatever goes wrong here, the session has ended well."""
    try:
        if state == COMPLETED:
            _keep_latest(saver, thread)
        elif state in (FAILED, CANCELLED):
            saver.delete_thread(thread)
    except Exception:  # noqa: BLE001 - see above
        _log.warning("checkpoints of %s stay", thread, exc_info=True)


def erase_deleted(database: Database, queue: JobQueue[SessionRow], saver: Saver) -> list[str]:
    """Repeated until it is done: a worker may die in between."""
    with database.read() as conn:
        deleted = list_cleanups(conn)
    for session in deleted:
        _erase(queue, saver, session)
        with database.begin() as conn:
            finish_cleanup(conn, session.session_id)
    return [session.session_id for session in deleted]


def _erase(queue: JobQueue[SessionRow], saver: Saver, deleted: Cleanup) -> None:
    for attempt in range(1, deleted.attempts + 1):
        saver.delete_thread(thread_of(deleted.session_id, attempt))
    queue.forget([(deleted.session_id, deleted.dispatches)])


def _keep_latest(saver: Saver, thread: str) -> None:
    """LangGraph can do this on PostgreSQL; on SQLite we do what it would."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    if not isinstance(saver, SqliteSaver):
        saver.prune([thread], strategy="keep_latest")
        return
    with saver.cursor() as cursor:
        cursor.execute(f"DELETE FROM writes WHERE {OLDER}", (thread, thread))
        cursor.execute(f"DELETE FROM checkpoints WHERE {OLDER}", (thread, thread))


KEY = re.compile(r"(?P<session>[0-9a-f]{32})-(?P<attempt>\d+)-\d+(-r\d+)?")
"""Of `tools.trials.order` for a session of the service; jobs of others are not ours to end."""


def end_orphans(database: Database, trials: LaunchedTrials, jobs: Path) -> list[str]:
    return [
        intent.key
        for intent in _unfinished(jobs)
        if _is_orphan(database, intent.key) and _end(trials, intent)
    ]


def _end(trials: LaunchedTrials, intent: Intent) -> bool:
    """Whether it still ran. An engine out of reach is asked again next time; jobs of others must not wait."""
    try:
        launcher = trials.launcher(intent.launcher)
        handle = launcher.find(intent.key)
        if handle is None or launcher.status(handle).has_ended:
            return False
        _log.warning("ending %s: its session is over", intent.key)
        launcher.cancel(handle)
    except AsapError as error:
        _log.warning("%s could not be ended: %s", intent.key, error)
        return False
    return True


def _unfinished(jobs: Path) -> Iterator[Intent]:
    for path in sorted(jobs.iterdir()) if jobs.is_dir() else ():
        folder = JobFolder(path)
        intent = folder.find_intent() if path.is_dir() and folder.find_final() is None else None
        if intent:
            yield intent


def _is_orphan(database: Database, key: str) -> bool:
    named = KEY.fullmatch(key)
    if named is None:
        return False
    query = sa.select(sessions.c.state, sessions.c.attempt).where(sessions.c.id == named["session"])
    with database.read() as conn:
        row = conn.execute(query).one_or_none()
    return row is None or row.state in TERMINAL or row.attempt != int(named["attempt"])
