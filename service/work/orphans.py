"""Ends the jobs of trials that nobody waits for: their session was cancelled unattended, retried or deleted.

A job of a session that still runs is never touched: whoever takes the session over finds it."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from service.store.database import Database
from service.store.states import TERMINAL
from service.store.tables import sessions
from tools.errors import AsapError
from tools.launch.folder import Intent, JobFolder
from tools.trials.runner import LaunchedTrials

KEY = re.compile(r"(?P<session>[0-9a-f]{32})-(?P<attempt>\d+)-\d+(-r\d+)?")
"""Of `tools.trials.keys` for a session of the service; jobs of others are not ours to end."""

_log = logging.getLogger(__name__)


def end_orphans(database: Database, trials: LaunchedTrials, jobs: Path) -> list[str]:
    return [one.key for one in _unfinished(jobs) if _is_orphan(database, one.key) and _end(trials, one)]


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
