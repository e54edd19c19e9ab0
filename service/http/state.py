"""What all routes share, made once per process by service/app.py; use cases of features are asked by type."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from threading import BoundedSemaphore, Event, local
from typing import Protocol, TypeVar

from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from service.access.authenticator import Authenticator
from service.db.engine import Database
from service.http.computing import Computing
from service.http.limits import SEARCHES_AT_A_TIME, Progress, Questions, RateLimit, run_in_turn
from service.http.metrics import Metrics
from service.settings import Settings

T = TypeVar("T")
TURNS = 4
"""Requests of one tenant that are worked on in this process at a time; more would take it from others."""
WAITS = 16
"""Requests of one tenant that look again and again whether somebody else is done."""


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
    questions: Questions = field(default_factory=Questions)
    computing: Computing | None = None
    """None: what computes is answered in place."""
    turns: defaultdict[str, CapacityLimiter] = field(
        default_factory=lambda: defaultdict(lambda: CapacityLimiter(TURNS))
    )
    """Each tenant has its own; who waits for one waits outside the threads, and keeps nobody from one."""
    waits: defaultdict[str, CapacityLimiter] = field(
        default_factory=lambda: defaultdict(lambda: CapacityLimiter(WAITS))
    )
    """Each tenant has its own, as with `turns`."""

    async def in_turn(self, tenant: str, work: Callable[[], T]) -> T:
        """In a thread, as a route that is no coroutine; for a coroutine, which takes no turn as it waits."""
        async with self.turns[tenant]:
            return await run_sync(work)

    def asks_model(self, tenant: str) -> bool:
        return self.settings.llm_base_url is not None and tenant not in self.settings.llm_off

    def turn_of(self, tenant: str) -> AbstractContextManager[object]:
        """A search holds it; what is computed in it, the tenant pays."""

        def pay(cpu_s: float) -> None:
            if self.computing:
                self.computing.pay(tenant, cpu_s)

        return _PaidTurn(self.searches, pay)

    def run_search(self, work: Callable[[Progress], T]) -> T:
        """Waits for its turn, and ends in the time of a request."""
        return run_in_turn(self.searches, self.settings.request_s, work)

    def get(self, kind: type[T]) -> T:
        usecase = self.usecases[kind]
        assert isinstance(usecase, kind)
        return usecase


class _PaidTurn(AbstractContextManager[None]):
    """May be taken again and again, by several threads."""

    def __init__(self, turns: BoundedSemaphore, pay: Callable[[float], object]) -> None:
        self._turns, self._pay, self._begun = turns, pay, local()

    def __enter__(self) -> None:
        self._turns.acquire()
        self._begun.cpu_s = time.thread_time()

    def __exit__(self, *_error: object) -> None:
        self._turns.release()
        self._pay(time.thread_time() - self._begun.cpu_s)
