"""The server's connections: how many there may be, and how long one may take to send a request's headers.

uvicorn has neither limit: half-open connections would use up the process's files.
"""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEADERS_S = 10.0
"""From a connection's first moment, or a request's first byte, to the end of its headers."""
OTHER_FILES = 200
"""Databases, logs, traces and readers of this process need files too."""


def connection_limit(wanted: int) -> int:
    """Within what the process may open."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if open_files == resource.RLIM_INFINITY else max(10, min(wanted, open_files - OTHER_FILES))


def bounded_protocol(max_connections: int, headers_s: float = HEADERS_S) -> type[asyncio.Protocol]:
    """For `uvicorn.Config(http=...)`."""
    limit = connection_limit(max_connections)
    waiting: dict[Any, asyncio.TimerHandle] = {}

    class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        """Beyond the limit the connection that has waited longest without a request makes room."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._await_headers()
            if len(self.connections) > limit:
                next(iter(waiting)).transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if is_answering:
                self._stop_waiting()
            elif self not in waiting and self.timeout_keep_alive_task is None:
                self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_headers(self) -> None:
            waiting[self] = asyncio.get_running_loop().call_later(headers_s, self.transport.abort)

        def _stop_waiting(self) -> None:
            timer = waiting.pop(self, None)
            if timer is not None:
                timer.cancel()

    return BoundedProtocol
