"""The events of one dispatch: written in groups, under the fence, before the checkpoint they lead to."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import sqlalchemy as sa

from graph.events import SessionEvent
from service.db.engine import retry_transaction
from service.jobs.worker import WorkerDeps
from service.sessions.event_store import insert_events
from service.sessions.model import SessionRow
from service.sessions.store import check_claim, lock_session
from service.strict_json import JsonObject

EVENTS_EVERY_S = 0.2


class Observer(Protocol):
    """Counts: service.http.metrics.Metrics if the API runs in this process."""

    def observe_wait(self, seconds: float) -> None: ...

    def observe_event(self, event: SessionEvent) -> None: ...


class SessionLog:
    """A session emits 50 events in a second or less: several are written per transaction.

    They are written before the checkpoint of their node, at once if the last ones are older than
    EVENTS_EVERY_S, and else within that time. A process killed before has lost them together with the node's
    result: it runs again and emits them again, with the same keys. Each attempt has keys of its own.
    """

    def __init__(self, worker: WorkerDeps, row: SessionRow, observer: Observer | None = None) -> None:
        self._worker, self._row, self._observer = worker, row, observer
        self._pending: list[JsonObject] = []
        self._count = 0
        self._lock = threading.RLock()
        self._written_at = -math.inf

    def emit(self, event: SessionEvent) -> None:
        """Here a session learns of everything that must stop it."""
        self._worker.check()
        stored = event.model_dump(mode="json")
        self._pending.append({**stored, "key": f"{self._row.attempt}/{event.key}"})
        if self._is_late():
            self._flush()
        if self._observer:
            self._observer.observe_event(event)

    def flush_late(self) -> None:
        if self._pending and self._is_late():
            with self._lock:
                with self._worker.database.begin(flush=False) as conn:
                    self._write_claimed(conn)
                self._forget_written()

    @contextmanager
    def claimed(self) -> Iterator[sa.Connection]:
        """No other worker takes the session over in this block; raises FencedError if one has already.

        The events go first: on SQLite the checkpoint is in another file, and must not be there before them.
        """
        with self._lock:
            if self._worker.database.is_sqlite and self._pending:
                self._flush()
            with self._worker.database.begin(flush=False) as conn:
                self._write_claimed(conn)
                yield conn
            self._forget_written()

    def write(self, conn: sa.Connection) -> None:
        """With the session's last state: whatever it was, what led to it is kept."""
        with self._lock:
            if self._pending:
                lock_session(conn, self._row.id, self._row.fence)
                insert_events(conn, self._row.id, self._pending)

    def check(self) -> None:
        """Raises what must stop the session: the worker's end, another claim, a wish to cancel."""
        self.write_fenced(lambda _conn: None)

    def write_fenced(self, work: Callable[[sa.Connection], object]) -> None:
        """Under the claim: a worker that lost the session overwrites nothing."""

        def write(conn: sa.Connection) -> None:
            check_claim(conn, self._row.id, self._row.fence)
            work(conn)

        self._retry(write)

    def _flush(self) -> None:
        with self._lock:
            self._retry(self._write_claimed)
            self._forget_written()

    def _retry(self, work: Callable[[sa.Connection], None]) -> None:
        worker = self._worker
        worker.check()
        gives_up = lambda: worker.must_stop() or not worker.lease.is_held()  # noqa: E731
        retry_transaction(worker.database, work, gives_up, flush=False)

    def _write_claimed(self, conn: sa.Connection) -> None:
        check_claim(conn, self._row.id, self._row.fence)
        self._count = len(self._pending)
        if self._count:
            insert_events(conn, self._row.id, self._pending[: self._count])

    def _forget_written(self) -> None:
        del self._pending[: self._count]
        self._written_at = time.monotonic()

    def _is_late(self) -> bool:
        return time.monotonic() - self._written_at >= EVENTS_EVERY_S
