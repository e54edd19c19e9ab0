"""Refuses bodies that are too large or come too slowly, before anything reads them whole."""

import re
from contextlib import suppress

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.problems import ApiError

UPLOAD = re.compile(r"/v1/traces/[^/]+/files/[^/]+")
"""Streamed to disk, so it may be as long as a folder of traces."""


class BodyLimits:
    """Counts what comes, since Content-Length may be absent; waits for each piece, not for the whole."""

    def __init__(self, app: ASGIApp, most_bytes: int, most_upload_bytes: int, patience_s: float) -> None:
        self._app, self._most, self._most_upload = app, most_bytes, most_upload_bytes
        self._patience_s = patience_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_upload = scope["method"] == "PUT" and UPLOAD.fullmatch(scope["path"])
        most = self._most_upload if is_upload else self._most
        await self._app(scope, _Counted(receive, most, _declared(scope), self._patience_s), send)


class _Counted:
    """A `receive` that gives up when the body does not keep to the limits."""

    def __init__(self, receive: Receive, most: int, declared: int, patience_s: float) -> None:
        self._receive, self._most, self._patience_s = receive, most, patience_s
        self._declared, self._count, self._done = declared, 0, False

    async def __call__(self) -> Message:
        if self._done:  # what follows is the wait for the caller to hang up
            return await self._receive()
        if self._declared > self._most:
            raise self._too_large()
        message = await self._next()
        if message["type"] == "http.request":
            self._count += len(message.get("body", b""))
            self._done = not message.get("more_body", False)
        if self._count > self._most:
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
        detail = f"the body has more than {self._most:,} bytes"
        allowed = f"at most {self._most:,} bytes"
        return ApiError("too-large", detail, field="body", allowed=allowed, headers={"Connection": "close"})


def _declared(scope: Scope) -> int:
    """What Content-Length says; the server has refused what is no number."""
    length = 0
    with suppress(ValueError):
        length = int(Headers(scope=scope).get("content-length", "0"))
    return length
