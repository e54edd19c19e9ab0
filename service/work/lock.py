"""Locks on the data folder, for what SQLite's own do not cover. They end with the process that has them."""

import fcntl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO

from service.settings import Settings
from tools.errors import AsapError, InputError

WORKER_FILE = "worker.lock"
UPGRADE_FILE = "upgrade.lock"


class BusyFolderError(AsapError):
    """Another process works in this data folder."""


def upgrade_lock(settings: Settings) -> AbstractContextManager[None]:
    """PostgreSQL needs none: there the upgrades lock each other out in the database."""
    return nullcontext() if settings.database_url else _waiting_for(settings.data_dir / UPGRADE_FILE)


@contextmanager
def _waiting_for(path: Path) -> Iterator[None]:
    with _opened(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lock_for_work(settings: Settings) -> IO[str]:
    """With SQLite one process runs sessions, so that whatever it finds begun is of a process that died."""
    file = _opened(settings.data_dir / WORKER_FILE)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BusyFolderError(
            f"another process runs the sessions of {settings.data_dir}; stop it, give this one another "
            "ASAP_DATA_DIR, or share PostgreSQL by ASAP_DATABASE_URL"
        ) from None
    return file


def _opened(path: Path) -> IO[str]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")
    except OSError as error:
        allowed = f"a folder that this user may write ({error.strerror}: {error.filename})"
        raise InputError("ASAP_DATA_DIR", str(path.parent), allowed) from None
