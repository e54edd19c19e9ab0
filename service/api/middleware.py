"""ASGI middleware: security headers, body limits, request ids with access logs; and the exporter of the
OpenTelemetry spans that FastAPI makes.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
from anyio.to_thread import run_sync
from opentelemetry.trace import get_current_span
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import __version__
from service.api.errors import ApiError, answer, unexpected
from service.logs import Redactor, request_id
from tools.errors import InputError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider


CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not "no-referrer": browsers then call the origin of our own forms "null"; service/auth.py refuses that.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class SecurityHeaders:
    """An answer that sets one of the headers itself keeps its own."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


UPLOAD = re.compile(r"/v1/traces/[^/]+/files/[^/]+")
"""Streamed to disk, so it may be as long as a folder of traces."""


class BodyLimits:
    """Counts what comes, since Content-Length may be absent; waits for each piece, not for the whole."""

    def __init__(self, app: ASGIApp, max_bytes: int, max_upload_bytes: int, patience_s: float) -> None:
        self._app, self._max_bytes, self._max_upload_bytes = app, max_bytes, max_upload_bytes
        self._patience_s = patience_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_upload = scope["method"] == "PUT" and UPLOAD.fullmatch(scope["path"])
        limit = self._max_upload_bytes if is_upload else self._max_bytes
        await self._app(scope, _Counted(receive, limit, _content_length(scope), self._patience_s), send)


class _Counted:
    """A `receive` that gives up when the body does not keep to the limits."""

    def __init__(self, receive: Receive, max_bytes: int, declared: int, patience_s: float) -> None:
        self._receive, self._max_bytes, self._patience_s = receive, max_bytes, patience_s
        self._declared, self._count, self._done = declared, 0, False

    async def __call__(self) -> Message:
        if self._done:  # what follows is the wait for the caller to hang up
            return await self._receive()
        if self._declared > self._max_bytes:
            raise self._too_large()
        message = await self._next()
        if message["type"] == "http.request":
            self._count += len(message.get("body", b""))
            self._done = not message.get("more_body", False)
        if self._count > self._max_bytes:
            raise self._too_large()
        return message

    async def _next(self) -> Message:
        try:
            with anyio.fail_after(self._patience_s):
                return await self._receive()
        except TimeoutError:
            waited = f"nothing of the body came for {self._patience_s:g} s"
            raise ApiError("timeout", waited, headers={"Connection": "close"}) from None

    def _too_large(self) -> ApiError:
        detail = f"the body has more than {self._max_bytes:,} bytes"
        allowed = f"at most {self._max_bytes:,} bytes"
        return ApiError("too-large", detail, field="body", allowed=allowed, headers={"Connection": "close"})


def _content_length(scope: Scope) -> int:
    """0 if it is absent; the server itself refuses what is not a number."""
    length = Headers(scope=scope).get("content-length", "0")
    return int(length) if length.isdecimal() else 0


HEADER = "X-Request-Id"
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOO_MANY = 429
_SAFE = ("GET", "HEAD", "OPTIONS")
_CLIENT_LEFT = 499
"""nginx's number for a caller that hung up before the answer."""
log = logging.getLogger("asap.http")

Measure = Callable[[str, str, int, float], None]
"""Receives the method, the route's pattern, the status and the seconds."""

Audit = Callable[[str, str, Scope, int, str], None]
"""Receives the tenant, the caller, the request, its status and its id."""


class RequestScope:
    """Takes the caller's request id if it is a plain word, else makes one."""

    def __init__(self, app: ASGIApp, redactor: Redactor, measure: Measure, audit: Audit) -> None:
        self._app, self._redactor, self._measure, self._audit = app, redactor, measure, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = _id_of(scope)
        get_current_span().set_attribute("asap.request_id", own)
        token = request_id.set(own)
        try:
            await self._answer(scope, receive, send, own)
        finally:
            request_id.reset(token)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, own: str) -> None:
        start, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = own
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:
            log.exception("request failed", extra={"method": scope["method"], "path": scope["path"]})
            if status:  # too late for another answer; a cut connection is not taken for a whole one
                raise
            await answer(unexpected(), {}, self._redactor)(scope, receive, send_with_id)
        finally:
            self._log_request(scope, status or _CLIENT_LEFT, time.perf_counter() - start)
        await self._audit_failure(scope, status, own)

    async def _audit_failure(self, scope: Scope, status: int, own: str) -> None:
        """Who was refused what; not what came too often: the log would be flooded instead."""
        state = scope.get("state", {})
        if status < 400 or status == _TOO_MANY or scope["method"] in _SAFE or "tenant" not in state:
            return
        try:
            await run_sync(self._audit, state["tenant"], state["caller"], scope, status, own)
        except Exception:  # the answer has gone out, and a log that is unavailable must not undo it
            log.exception("a failed request could not be audited")

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        route = pattern_of(scope)
        self._measure(scope["method"], route, status, seconds)
        log.info(
            "request",
            extra={
                "method": scope["method"],
                "path": scope["path"],
                "route": route,
                "status": status,
                "seconds": round(seconds, 6),
                "caller": scope.get("state", {}).get("caller"),
            },
        )


def pattern_of(scope: Scope) -> str:
    """The route with its placeholders, so that measures do not grow with every id."""
    return getattr(scope.get("route"), "path", None) or "unknown"


def _id_of(scope: Scope) -> str:
    stated = Headers(scope=scope).get(HEADER, "")
    return stated if _SANE.fullmatch(stated) else secrets.token_hex(16)


SETTING = "ASAP_OTLP_ENDPOINT"


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
