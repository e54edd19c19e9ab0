"""Limits the connections of a process: in total, per address, and by how long a client keeps it waiting.

Beyond a limit the connections that wait for their client make room, those of the address that has the most
first; one whose request is being worked on never does.
"""

import asyncio
import resource
from collections.abc import Collection
from typing import TYPE_CHECKING, Literal

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.http.limits import RateLimit

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

HEADERS_S = 10.0
"""From a connection's first moment, or a request's first byte, to the end of its headers."""
BURST_S = 1.0
"""New connections of an address that may come at once, in seconds of the allowed rate."""
UNREAD_S = 10.0
MIN_READ_BYTES = 10_000
"""A client must read at least this much of a waiting response in that time."""
MAX_PIPELINED = 8
"""Requests sent before the first is answered; browsers and HTTP libraries send none."""
OTHER_FILES = 200
"""Databases, logs, traces and readers of this process need files too."""

Wait = Literal["idle", "sending", "unread"]
"""What a connection waits for: headers, a body, or its client's reading; in this order they make room."""
WAITS: tuple[Wait, ...] = ("idle", "sending", "unread")


class _Address:
    def __init__(self) -> None:
        self.count = 0
        self.waiting: dict[Wait, dict[BoundedProtocol, None]] = {wait: {} for wait in WAITS}
        """The longest wait first."""

    def longest_waiting(self) -> "BoundedProtocol | None":
        return next((next(iter(connections)) for connections in self.waiting.values() if connections), None)


class Connections:
    """Those of one process, by address."""

    def __init__(self, most: int, address_most: int, per_minute: int, proxies: Collection[str]) -> None:
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        is_endless = open_files == resource.RLIM_INFINITY
        self._most = most if is_endless else max(10, min(most, open_files - OTHER_FILES))
        self._address_most, self._proxies = address_most, proxies
        self._opening = RateLimit(per_minute, BURST_S)
        self._count = 0
        self._addresses: dict[str, _Address] = {}

    def of(self, host: str) -> _Address:
        return self._addresses.setdefault(host, _Address())

    def add(self, connection: "BoundedProtocol") -> bool:
        """Whether there is room for it, if need be by closing another."""
        host, address = connection.host, self.of(connection.host)
        address.count += 1
        self._count += 1
        is_limited = host not in self._proxies
        if is_limited and self._opening.wait_s(host):
            return False
        if is_limited and address.count > self._address_most:
            leaving = address.longest_waiting()
        elif self._count > self._most:
            crowded = sorted(self._addresses.values(), key=lambda address: address.count, reverse=True)
            leaving = next(filter(None, (address.longest_waiting() for address in crowded)), None)
        else:
            return True
        if leaving is not None:
            leaving.drop()
        return leaving is not None

    def discard(self, connection: "BoundedProtocol") -> None:
        address = self.of(connection.host)
        address.count -= 1
        self._count -= 1
        if not address.count:
            del self._addresses[connection.host]


class BoundedProtocol(HttpToolsProtocol):
    """Knows what it waits for, and does not wait for ever."""

    bounds: Connections
    headers_s: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.host = self.client[0] if self.client else ""
        self._wait: Wait | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._working: RequestResponseCycle | None = None
        if self.bounds.add(self):
            self._settle()
        else:
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)
        self._stop_timer()
        self._move_to(None)
        self.bounds.discard(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._settle()

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise httptools.HttpParserError("too many pipelined requests")
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._settle()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._settle()

    def drop(self) -> None:
        """At once, with what it has not sent."""
        self._forget()
        self.transport.abort()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: "ASGI3Application") -> None:
        self._working = cycle
        super()._start_asgi_task(cycle, app)

    def _forget(self) -> None:
        """Nothing more is written. uvicorn itself tells only the newest of pipelined requests."""
        if (cycle := self._working) is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.pipeline.clear()

    def _settle(self) -> None:
        """Finds out what the connection waits for now, and how long it may."""
        if self.parser is None:  # the connection is lost
            return
        cycle: RequestResponseCycle | None = self.cycle
        wait: Wait | None
        if self.flow.write_paused or self.transport.is_closing():  # which it is once everything is read
            wait = "unread"
        elif cycle is None or (cycle.response_complete and not self.pipeline):
            wait = "idle"
        else:
            wait = "sending" if cycle.more_body else None
        if wait != self._wait:
            self._stop_timer()
            self._move_to(wait)
            if wait == "unread":
                self._expect_reading(self.transport.get_write_buffer_size())
        if wait == "idle" and self._timer is None and self.timeout_keep_alive_task is None:
            self._timer = self.loop.call_later(self.headers_s, self.drop)

    def _expect_reading(self, unread: int) -> None:
        def check() -> None:
            left = self.transport.get_write_buffer_size()
            if unread - left < MIN_READ_BYTES:
                self.drop()
            else:
                self._expect_reading(left)

        self._timer = self.loop.call_later(UNREAD_S, check)

    def _move_to(self, wait: Wait | None) -> None:
        waiting = self.bounds.of(self.host).waiting
        if self._wait is not None:
            waiting[self._wait].pop(self, None)
        self._wait = wait
        if wait is not None:
            waiting[wait][self] = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def bounded_protocol(
    max_connections: int,
    address_connections: int,
    address_per_minute: int,
    proxies: Collection[str] = (),
    headers_s: float = HEADERS_S,
) -> type[asyncio.Protocol]:
    """For `uvicorn.Config(http=...)`. The connections that an address may open per minute are limited: more
    than the requests it may send would serve nobody. Proxies forward what many clients send and are exempt.
    """
    bounds = Connections(max_connections, address_connections, address_per_minute, proxies)
    return type("Bounded", (BoundedProtocol,), {"bounds": bounds, "headers_s": headers_s})
