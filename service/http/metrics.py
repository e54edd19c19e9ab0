"""What is measured: counts and times for Prometheus, and spans of OpenTelemetry."""

from collections.abc import Callable, Iterator, Mapping
from http import HTTPMethod
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from graph.events import IncidentReported, NodeFinished, Reasoned, SessionEvent, ToolCalled
from service import __version__
from tools.errors import InputError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

METHODS = frozenset(HTTPMethod)
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
LONG_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
SPANS_SETTING = "ASAP_OTLP_ENDPOINT"


class Metrics:
    def __init__(self, count_sessions: Callable[[], Mapping[str, int]]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a series more each, for nothing
        self.registry = CollectorRegistry()
        self.registry.register(_SessionCounts(count_sessions))
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
            "asap_llm_tokens_total", "tokens of the language model", ["question"], registry=self.registry
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

    def observe_event(self, event: SessionEvent) -> None:
        """A session that runs in this process emitted an event."""
        if isinstance(event, NodeFinished | ToolCalled | Reasoned):
            self._steps.labels(event.node, event.kind).observe(event.seconds)
        if isinstance(event, Reasoned):
            self._tokens.labels(event.question).inc(max(0, event.tokens))
        if isinstance(event, IncidentReported):
            self.observe_incident(event.incident, event.error, event.place)

    def observe_incident(self, kind: str, error: str | None = None, place: str | None = None) -> None:
        """An error of our own is also counted by its class and place."""
        self._faults.labels(kind).inc()
        if error is not None:
            self._errors.labels(error, place or "").inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _SessionCounts(Collector):
    """Read from the database at every scrape: every replica reports the same number."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """Registering must not ask the database."""
        yield self._family({})

    def collect(self) -> Iterator[GaugeMetricFamily]:
        yield self._family(self._count())

    def _family(self, counts: Mapping[str, int]) -> GaugeMetricFamily:
        family = GaugeMetricFamily("asap_sessions", "sessions of all tenants by state", labels=["state"])
        for state, count in counts.items():
            family.add_metric([state], count)
        return family


def open_spans(endpoint: str) -> "TracerProvider":
    """Spans are collected and sent in the background; `shutdown()` sends the rest."""
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InputError(SPANS_SETTING, endpoint, "needs the packages of the extra 'tracing'") from None
    resource = Resource.create({"service.name": "asap", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider
