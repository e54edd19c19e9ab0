"""What the endpoints work with, made once by app.py and handed to them by dependencies.py."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Event, Lock
from typing import Protocol

import sqlalchemy as sa

from service.api.analyses import Analyses
from service.api.metrics import Metrics
from service.api.rates import RateLimit
from service.api.watch import Watch
from service.auth.authenticator import Authenticator
from service.settings import Settings
from service.store.database import Database
from service.store.rows import SessionRow
from service.uploads import Uploads
from tools.kb import KnowledgeBase

SEARCHES_AT_A_TIME = 2
"""Plan searches outside sessions that one process runs; the rest is told to come again."""


class Queue(Protocol):
    """Where a session's next leg is put for the workers."""

    def enqueue(self, conn: sa.Connection, row: SessionRow) -> None:
        """In the transaction that changed the session."""

    def unfinished(self, ids: Iterable[str]) -> set[str]:
        """Those of the legs (`<session>.<number>`) that will still do something."""


class Lazy:
    """Opened by whoever first needs it: starting must not wait for it."""

    def __init__(self, open: Callable[[], KnowledgeBase]) -> None:
        self._open, self._lock = open, Lock()
        self._opened: KnowledgeBase | None = None

    def get(self) -> KnowledgeBase:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None


@dataclass(frozen=True)
class Parts:
    settings: Settings
    database: Database
    queue: Queue
    authenticator: Authenticator
    rates: RateLimit
    metrics: Metrics
    uploads: Uploads
    analyses: Analyses
    knowledge: Lazy
    stopping: Event
    """Set when the server is told to stop: streams end, so that it can."""
    watch: Watch
    """Wakes event streams."""
    searches: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(SEARCHES_AT_A_TIME))
