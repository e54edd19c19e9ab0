"""OpenTelemetry spans of requests, where ASAP_OTLP_ENDPOINT says where to send them. Imported only then."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import __version__
from service.api.request_scope import pattern_of
from service.logs import request_id
from tools.errors import InputError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SETTING = "ASAP_OTLP_ENDPOINT"
SERVER_ERROR = 500


def open_provider(endpoint: str) -> "TracerProvider":
    """Spans are collected and sent in the background; `shutdown()` sends the rest."""
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise InputError(SETTING, endpoint, "needs the packages of the extra 'tracing'") from None
    resource = Resource.create({"service.name": "asap", "service.version": __version__})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, insecure=not endpoint.startswith("https://"))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


class Spans:
    """One span a request, a child of the caller's where it sent `traceparent`."""

    def __init__(self, app: ASGIApp, provider: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app = app
        self._tracer = provider.get_tracer("asap.http", __version__)
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract(dict(Headers(scope=scope)))
        attributes = {"http.request.method": scope["method"], "url.path": scope["path"]}
        with self._tracer.start_as_current_span(scope["method"], parent, SpanKind.SERVER, attributes) as span:
            await self._app(scope, receive, _noting(send, span))
            span.update_name(f"{scope['method']} {pattern_of(scope)}")
            span.set_attributes({"http.route": pattern_of(scope), "asap.request_id": request_id.get() or ""})


def _noting(send: Send, span: Any) -> Callable[[Message], Awaitable[None]]:  # noqa: ANN401 - typed where imported
    from opentelemetry.trace import StatusCode

    async def noting(message: Message) -> None:
        if message["type"] == "http.response.start":
            span.set_attribute("http.response.status_code", message["status"])
            if message["status"] >= SERVER_ERROR:
                span.set_status(StatusCode.ERROR)
        await send(message)

    return noting
