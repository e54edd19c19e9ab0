"""Deletes uploaded traces whose time is over, in a thread of its own."""

import logging
import time
from contextlib import suppress
from threading import Event, Thread

from sqlalchemy.exc import SQLAlchemyError

from service.errors import NotFoundError
from service.store.database import Database
from service.store.traces import delete_trace, list_expired
from service.uploads import Uploads

log = logging.getLogger("asap.traces")
EVERY_S = 600.0


def sweep(database: Database, uploads: Uploads, now_s: float) -> int:
    """How many were deleted. Files first: files without a row would never be found again."""
    with database.read() as conn:
        expired = list_expired(conn, now_s)
    for row in expired:
        uploads.discard(row.id)
        with suppress(NotFoundError), database.begin() as conn:  # another replica sweeps too
            delete_trace(conn, row.tenant, row.id)
    return len(expired)


class Retention:
    def __init__(self, database: Database, uploads: Uploads, every_s: float = EVERY_S) -> None:
        self._database, self._uploads, self._every_s = database, uploads, every_s
        self._stop = Event()
        self._thread = Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                deleted = sweep(self._database, self._uploads, time.time())
            except (SQLAlchemyError, OSError):
                log.exception("the sweep of old traces failed; it is tried again")
            else:
                if deleted:
                    log.info("deleted traces whose time was over", extra={"deleted": deleted})
            self._stop.wait(self._every_s)
