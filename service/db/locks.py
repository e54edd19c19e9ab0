"""Locks between processes: advisory ones of PostgreSQL by number, files in the data folder with SQLite."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from service.settings import Settings, make_data_folder
from tools.errors import AsapError

UPGRADE_LOCK = 0x41534150
"""Any number that nobody else uses for an advisory lock in this database: "ASAP"."""
TAKEOVER_LOCK = UPGRADE_LOCK + 1
PREPARE_LOCK = UPGRADE_LOCK + 2
WORKER_FILE = "worker.lock"
UPGRADE_FILE = "upgrade.lock"


class BusyFolderError(AsapError):
    """Another process works in this data folder."""


@contextmanager
def upgrade_lock(settings: Settings) -> Iterator[None]:
    """PostgreSQL needs none: there the upgrades lock each other out in the database."""
    if settings.database_url:
        yield
        return
    with (make_data_folder(settings.data_dir) / UPGRADE_FILE).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lock_for_work(settings: Settings) -> IO[str]:
    """With SQLite one process runs sessions, so whatever it finds started belongs to a process that died."""
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
