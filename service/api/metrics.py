"""What /metrics tells Prometheus. Each app has a registry of its own, so that tests do not share counts."""

from collections.abc import Iterator, Mapping
from http import HTTPMethod

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from service.store.database import Database
from service.store.sessions import counts_by_state
from service.store.states import STATES

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
            "incidents told by sessions, those of the language model's endpoint among them",
            ["kind"],
            registry=self.registry,
        )

    def measure(self, method: str, route: str, status: int, seconds: float) -> None:
        method = method if method in METHODS else "other"  # callers make them up, and a series is for ever
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(method, route).observe(seconds)

    def observe_wait(self, seconds: float) -> None:
        """A worker of this process took a session from the queue."""
        self._waits.observe(max(0.0, seconds))

    def observe_event(self, event: Mapping[str, object]) -> None:
        """A session that runs in this process told an event."""
        kind, seconds, tokens = str(event["kind"]), event.get("seconds"), event.get("tokens")
        if isinstance(seconds, int | float):
            self._steps.labels(str(event["node"]), kind).observe(seconds)
        if isinstance(tokens, int | float):
            self._tokens.labels(str(event.get("question", ""))).inc(max(0, tokens))
        if kind == "incident":
            self._faults.labels(str(event.get("incident", "other"))).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Sessions(Collector):
    """Asked of the database at every scrape: every replica tells the same number."""

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
