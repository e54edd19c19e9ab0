"""Locks on the data folder, for what SQLite's own do not cover. They end with the process that has them."""

import fcntl
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO

from service.data_folder import make_data_folder
from service.settings import Settings
from tools.errors import AsapError

WORKER_FILE = "worker.lock"
UPGRADE_FILE = "upgrade.lock"


class BusyFolderError(AsapError):
    """Another process works in this data folder."""


def upgrade_lock(settings: Settings) -> AbstractContextManager[None]:
    """PostgreSQL needs none: there the upgrades lock each other out in the database."""
    return nullcontext() if settings.database_url else _waiting_for(settings.data_dir)


@contextmanager
def _waiting_for(folder: Path) -> Iterator[None]:
    with (make_data_folder(folder) / UPGRADE_FILE).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lock_for_work(settings: Settings) -> IO[str]:
    """With SQLite one process runs sessions, so that whatever it finds begun is of a process that died."""
    file = (make_data_folder(settings.data_dir) / WORKER_FILE).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BusyFolderError(
            f"another process runs the sessions of {settings.data_dir}; stop it, give this one another "
            "ASAP_DATA_DIR, or share PostgreSQL by ASAP_DATABASE_URL"
        ) from None
    return file
