"""The outermost layer of a request: its id, its line in the log, its measure, the answer to a failure."""

import logging
import re
import secrets
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problem_handlers import answer, unexpected
from service.logs import Redactor, request_id

HEADER = "X-Request-Id"
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_CLIENT_LEFT = 499
"""nginx's number for a caller that hung up before the answer."""
log = logging.getLogger("asap.http")

Measure = Callable[[str, str, int, float], None]
"""Told the method, the route's pattern, the status and the seconds."""


class RequestScope:
    """Takes the caller's request id where it is a plain word, else makes one."""

    def __init__(self, app: ASGIApp, redactor: Redactor, measure: Measure) -> None:
        self._app, self._redactor, self._measure = app, redactor, measure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        own = _id_of(scope)
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
            self._tell(scope, status or _CLIENT_LEFT, time.perf_counter() - start)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
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
    given = Headers(scope=scope).get(HEADER, "")
    return given if _SANE.fullmatch(given) else secrets.token_hex(16)
