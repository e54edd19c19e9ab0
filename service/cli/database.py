"""Opens the database for a command that comes and goes, brought to the last version of its schema."""

from collections.abc import Iterator
from contextlib import contextmanager

from service.settings import Settings
from service.store.database import Database, open_database
from service.work.lock import upgrade_lock


@contextmanager
def opened_database(settings: Settings) -> Iterator[Database]:
    database = open_database(settings.database)
    try:
        with upgrade_lock(settings):
            database.upgrade()
        yield database
    finally:
        database.close()
