"""What sessions leave behind: checkpoints and records of deleted ones, trial jobs nobody waits for."""

import logging
import re
import shutil
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from langgraph.checkpoint.base import BaseCheckpointSaver

from service.db.engine import Database
from service.jobs.model import TERMINAL
from service.sessions.dispatch import SessionQueue
from service.sessions.model import sessions, thread_of
from service.sessions.store import finish_cleanup, list_cleanups
from tools.errors import AsapError
from tools.launch.folder import JobFolder
from tools.trials.run import LaunchedTrials

Saver = BaseCheckpointSaver[Any]
TRIAL_KEY = re.compile(r"(?P<session>[0-9a-f]{32})-(?P<attempt>\d+)-\d+(-[rb]\d+)?")
"""A key by `tools.trials.order` for a session of the service; other jobs are not ours to end."""
AT_ONCE = 500

_log = logging.getLogger(__name__)


def erase_deleted(database: Database, queue: SessionQueue, saver: Saver) -> list[str]:
    """Repeated until it is done: a worker may die in between."""
    with database.read() as conn:
        deleted = list_cleanups(conn)
    for session in deleted:
        for attempt in range(1, session.attempts + 1):
            saver.delete_thread(thread_of(session.session_id, attempt))
        queue.forget([(session.session_id, session.dispatches)])
        with database.begin() as conn:
            finish_cleanup(conn, session.session_id)
    return [session.session_id for session in deleted]


def end_orphans(database: Database, trials: LaunchedTrials, jobs: Path) -> list[str]:
    """The keys of the jobs that still ran, though their session is over, deleted or in another attempt.

    An engine out of reach is asked again next time; jobs of others must not wait.
    """
    ended = []
    for path in sorted(jobs.iterdir()) if jobs.is_dir() else ():
        folder = JobFolder(path)
        intent = folder.find_intent() if path.is_dir() and folder.find_final() is None else None
        parts = TRIAL_KEY.fullmatch(intent.key) if intent else None
        if intent is None or parts is None:
            continue
        query = sa.select(sessions.c.state, sessions.c.attempt).where(sessions.c.id == parts["session"])
        with database.read() as conn:
            row = conn.execute(query).one_or_none()
        if row and row.state not in TERMINAL and row.attempt == int(parts["attempt"]):
            continue
        try:
            launcher = trials.launcher(intent.launcher)
            handle = launcher.find(intent.key)
            if handle and not launcher.status(handle).has_ended:
                _log.warning("ending %s: its session is over", intent.key)
                launcher.cancel(handle)
                ended.append(intent.key)
        except AsapError as error:
            _log.warning("%s could not be ended: %s", intent.key, error)
    return ended


def erase_trials(database: Database, jobs: Path, results: Path) -> list[str]:
    """Of deleted sessions, on this machine; the names of the folders that went. A job that still runs keeps
    its own until it has ended."""
    found = [path for root in (jobs, results) if root.is_dir() for path in root.iterdir()]
    trials = [(path, parts["session"]) for path in found if (parts := TRIAL_KEY.fullmatch(path.name))]
    erased = []
    for start in range(0, len(trials), AT_ONCE):
        some = trials[start : start + AT_ONCE]
        with database.read() as conn:
            kept = set(conn.scalars(sa.select(sessions.c.id).where(sessions.c.id.in_(id for _, id in some))))
        for path, id in some:
            folder = JobFolder(path)
            is_over = path.parent == results or folder.find_final() or not folder.find_intent()
            if id not in kept and is_over:
                shutil.rmtree(path, ignore_errors=True)
                erased.append(path.name)
    return erased
