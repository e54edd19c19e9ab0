"""ASGI middleware: security headers, request ids with access logs, and the audit of what was refused."""

import logging
import re
import secrets
import time
from collections.abc import Callable

from anyio.to_thread import run_sync
from opentelemetry.trace import get_current_span
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.authenticator import SAFE_METHODS
from service.http.limits import RateLimit, check_rate_limit
from service.http.problems import ApiError, answer, problem_of, unexpected
from service.logs import Redactor, request_id

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
    # Not "no-referrer": browsers then call the origin of our own forms "null", which is refused.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
HEADER = "X-Request-Id"
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOO_MANY = 429
_CLIENT_LEFT = 499
"""nginx's number for a caller that hung up before the answer."""
log = logging.getLogger("asap.http")

RequestMeasure = Callable[[str, str, int, float], None]
"""Receives the method, the route's pattern, the status and the seconds."""

Audit = Callable[[str, str, Scope, int, str], None]
"""Receives the tenant, the caller, the request, its status and its id."""


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


class RequestScope:
    """Takes the caller's request id if it is a plain word, else makes one. Before anything else the requests
    of an address are counted, with and without a key."""

    def __init__(
        self, app: ASGIApp, redactor: Redactor, measure: RequestMeasure, audit: Audit, addresses: RateLimit
    ) -> None:
        self._app, self._redactor, self._measure, self._audit = app, redactor, measure, audit
        self._addresses = addresses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            check_rate_limit(self._addresses, (scope.get("client") or ("",))[0])
        except ApiError as error:
            self._measure(scope["method"], pattern_of(scope), _TOO_MANY, 0.0)
            await answer(problem_of(error), error.headers, self._redactor)(scope, receive, send)
            return
        stated = Headers(scope=scope).get(HEADER, "")
        id = stated if _SANE.fullmatch(stated) else secrets.token_hex(16)
        get_current_span().set_attribute("asap.request_id", id)
        token = request_id.set(id)
        start, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = id
            await send(message)

        try:
            try:
                await self._app(scope, receive, send_with_id)
            except ClientDisconnect:
                pass  # it is told nothing, and a tenant that hangs up again and again fills no log
            except Exception:
                log.exception("request failed", extra={"method": scope["method"], "path": scope["path"]})
                if status:  # too late for another answer; a cut connection is not taken for a whole one
                    raise
                await answer(unexpected(), {}, self._redactor)(scope, receive, send_with_id)
            finally:
                self._log_request(scope, status or _CLIENT_LEFT, time.perf_counter() - start)
            state = scope.get("state", {})
            # Who was refused what; not what came too often: the log would be flooded instead.
            if 400 <= status != _TOO_MANY and scope["method"] not in SAFE_METHODS and "tenant" in state:
                try:
                    await run_sync(self._audit, state["tenant"], state["caller"], scope, status, id)
                except Exception:  # the answer has gone out, and a log that is unavailable must not undo it
                    log.exception("a failed request could not be audited")
        finally:
            request_id.reset(token)

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
