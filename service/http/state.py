"""What all routes share, made once per process by service/app.py; use cases of features are asked by type."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Event
from typing import Protocol, TypeVar

from anyio import CapacityLimiter

from service.access.authenticator import Authenticator
from service.db.engine import Database
from service.http.computing import Computing
from service.http.limits import QUESTIONS_AT_A_TIME, SEARCHES_AT_A_TIME, Progress, RateLimit, run_in_turn
from service.http.metrics import Metrics
from service.settings import Settings

T = TypeVar("T")
TURNS = 4
"""Requests of one tenant that are worked on in this process at a time; more would take it from others."""


class WorkflowRecords(Protocol):
    def unfinished(self, ids: Iterable[str]) -> set[str]:
        """Those of the workflows (`<session>.<dispatch>`) that will still do something."""


@dataclass(frozen=True)
class AppState:
    settings: Settings
    database: Database
    queue: WorkflowRecords
    authenticator: Authenticator
    rates: RateLimit
    metrics: Metrics
    stopping: Event
    """Set when the server is told to stop: streams end, so that it can."""
    usecases: Mapping[type, object]
    """The use cases of each feature, by their class."""
    searches: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(SEARCHES_AT_A_TIME))
    questions: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(QUESTIONS_AT_A_TIME))
    computing: Computing | None = None
    """None: what computes is answered in place."""
    turns: defaultdict[str, CapacityLimiter] = field(
        default_factory=lambda: defaultdict(lambda: CapacityLimiter(TURNS))
    )
    """Of each tenant; who waits for one waits outside the threads, and keeps nobody from one."""

    def run_search(self, work: Callable[[Progress], T]) -> T:
        """Waits for its turn, and ends in the time of a request."""
        return run_in_turn(self.searches, self.settings.request_s, work)

    def get(self, kind: type[T]) -> T:
        usecase = self.usecases[kind]
        assert isinstance(usecase, kind)
        return usecase
