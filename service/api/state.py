"""What endpoints share, made once per process: settings, database, queue, rate limit, metrics, event
watcher.
"""

import asyncio
import collections
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPMethod
from threading import BoundedSemaphore, Event, Lock
from typing import Protocol

import sqlalchemy as sa
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from service.auth import Authenticator
from service.db.engine import Database
from service.db.models import STATES, TERMINAL, events, sessions
from service.db.sessions import counts_by_state
from service.nightly.schedules import Schedules
from service.sessions import SessionQueue, Sessions
from service.settings import Settings
from service.traces import Traces
from tools.kb import KnowledgeBase

MAX_CALLERS = 10_000
BURST_S = 10.0
"""A burst: the requests that may arrive at once, in seconds of the allowed rate."""


class RateLimit:
    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_minute / 60
        self._burst = max(1.0, self._per_s * BURST_S)
        self._clock, self._lock = clock, Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> int:
        """Counts a request: 0 if it is allowed, else the seconds until one will be, rounded up."""
        now = self._clock()
        with self._lock:
            left, before = self._buckets.pop(caller, (self._burst, now))
            left = min(self._burst, left + (now - before) * self._per_s)
            allowed = left >= 1
            self._buckets[caller] = (left - allowed, now)
            if len(self._buckets) > MAX_CALLERS:
                self._buckets.popitem(last=False)
        return 0 if allowed else math.ceil((1 - left) / self._per_s)


METHODS = frozenset(HTTPMethod)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LONG_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)


class Metrics:
    def __init__(self, database: Database) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more each, for nothing
        self.registry = CollectorRegistry()
        self.registry.register(_Sessions(database))
        self._requests = Counter(
            "asap_http_requests_total", "answered", ["method", "route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "asap_http_request_seconds",
            "from the request to the end of its answer",
            ["method", "route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.streams = Gauge("asap_event_streams", "open streams of events", registry=self.registry)
        self._waits = Histogram(
            "asap_queue_wait_seconds", "queued until claimed", buckets=LONG_SECONDS, registry=self.registry
        )
        self._steps = Histogram(
            "asap_step_seconds",
            "what a node spent in tools and questions, one by one",
            ["node", "kind"],
            buckets=LONG_SECONDS,
            registry=self.registry,
        )
        self._tokens = Counter(
            "asap_llm_tokens_total", "of the language model", ["question"], registry=self.registry
        )
        self._faults = Counter(
            "asap_endpoint_faults_total",
            "incidents of sessions, those of the language model's endpoint among them",
            ["kind"],
            registry=self.registry,
        )
        self._errors = Counter(
            "asap_unexpected_errors_total",
            "errors of ASAP's own in questions to the language model: each is a bug, please report it",
            ["error", "place"],
            registry=self.registry,
        )

    def measure(self, method: str, route: str, status: int, seconds: float) -> None:
        # Callers invent methods, and a series is never removed.
        method = method if method in METHODS else "other"
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)

    def observe_wait(self, seconds: float) -> None:
        """A worker of this process took a session from the queue."""
        self._waits.observe(max(0.0, seconds))

    def observe_event(self, event: Mapping[str, object]) -> None:
        """A session that runs in this process emitted an event."""
        kind, seconds, tokens = str(event["kind"]), event.get("seconds"), event.get("tokens")
        if isinstance(seconds, int | float):
            self._steps.labels(str(event["node"]), kind).observe(seconds)
        if isinstance(tokens, int | float):
            self._tokens.labels(str(event.get("question", ""))).inc(max(0, tokens))
        if kind == "incident":
            error, place = event.get("error"), event.get("place")
            self.observe_incident(
                str(event.get("incident", "other")), str(error) if error else None, str(place or "")
            )

    def observe_incident(self, kind: str, error: str | None = None, place: str | None = None) -> None:
        """Of a session or an answer; an error of our own by its class and place too."""
        self._faults.labels(kind).inc()
        if error is not None:
            self._errors.labels(error, place or "").inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Sessions(Collector):
    """Read from the database at every scrape: every replica reports the same number."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Registering must not ask the database."""
        yield self._family()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        with self._database.read() as conn:
            counts = counts_by_state(conn)
        family = self._family()
        for state in STATES:
            family.add_metric([state], counts.get(state, 0))
        yield family

    def _family(self) -> GaugeMetricFamily:
        return GaugeMetricFamily("asap_sessions", "sessions of all tenants by state", labels=["state"])


POLL_S = 0.3
AT_A_TIME = 500
"""Sessions in one query."""
ENDED = 2**63
"""As the number of a last event: above any that a client may have seen."""
READERS = 4
"""Threads for all streams of a process: other requests keep theirs."""


@dataclass(eq=False)
class _Waiter:
    id: str
    after: int
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class EventWatcher:
    """Used from one event loop. Polls only while a stream waits."""

    def __init__(self, database: Database, stopping: Event) -> None:
        self._database, self._stopping = database, stopping
        self._waiters: set[_Waiter] = set()
        self._looking: asyncio.Task[None] | None = None
        self._limiter: CapacityLimiter | None = None

    @property
    def limiter(self) -> CapacityLimiter:
        """Made inside the loop that uses it."""
        self._limiter = self._limiter or CapacityLimiter(READERS)
        return self._limiter

    async def wait(self, id: str, after: int, timeout_s: float) -> bool:
        """Whether there may be something new: an event after that one, an end, or that the server stops."""
        waiter = _Waiter(id, after)
        self._waiters.add(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._poll())
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(waiter.woken.wait(), timeout_s)
        finally:
            self._waiters.discard(waiter)
        return waiter.woken.is_set()

    async def _poll(self) -> None:
        while self._waiters:
            await asyncio.sleep(POLL_S)
            waiting = list(self._waiters)
            ids = sorted({waiter.id for waiter in waiting})
            try:
                last = await run_sync(self._last_events, ids, limiter=self.limiter)
            except SQLAlchemyError:  # each stream finds out by itself what is wrong
                last = {}
            for waiter in waiting:
                # A session that is not there any more has news too.
                if self._stopping.is_set() or last.get(waiter.id, waiter.after + 1) > waiter.after:
                    waiter.woken.set()

    def _last_events(self, ids: Sequence[str]) -> dict[str, int]:
        """The last event of each session; beyond all if it has ended, so that its streams end too."""
        last_seqs: dict[str, int] = {}
        newest = sa.select(sa.func.max(events.c.seq)).where(events.c.session_id == sessions.c.id)
        query = sa.select(sessions.c.id, sessions.c.state, newest.scalar_subquery())
        with self._database.read() as conn:
            for start in range(0, len(ids), AT_A_TIME):
                batch = query.where(sessions.c.id.in_(ids[start : start + AT_A_TIME]))
                last_seqs |= {
                    id: ENDED if state in TERMINAL else int(seq or 0)
                    for id, state, seq in conn.execute(batch)
                }
        return last_seqs


SEARCHES_AT_A_TIME = 2
"""Plan searches outside sessions that one process runs; others get 503 with Retry-After."""
QUESTIONS_AT_A_TIME = 16
"""People who wait for a language model; it computes elsewhere, but each wait takes a thread of the server."""


class Queue(SessionQueue, Protocol):
    def unfinished(self, ids: Iterable[str]) -> set[str]:
        """Those of the workflows (`<session>.<dispatch>`) that will still do something."""


class LazyKnowledge:
    """Opened at first use: starting the server must not wait for it."""

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
class AppState:
    settings: Settings
    database: Database
    queue: Queue
    sessions: Sessions
    schedules: Schedules
    authenticator: Authenticator
    rates: RateLimit
    metrics: Metrics
    traces: Traces
    knowledge: LazyKnowledge
    stopping: Event
    """Set when the server is told to stop: streams end, so that it can."""
    watch: EventWatcher
    """Wakes event streams."""
    streams: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    """Open streams of events of each key and tenant."""
    searches: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(SEARCHES_AT_A_TIME))
    questions: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(QUESTIONS_AT_A_TIME))
