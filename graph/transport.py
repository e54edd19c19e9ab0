"""The HTTP client of a language model: bounded in time, size and place, whatever the endpoint sends."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

MAX_REPLY_BYTES = 8_000_000
_CUT_OFF = "asap_cut_off"
_GRACE_S = 0.25
"""What the socket's own timeout reports says more, so it comes first."""


def bounded_client(clock: Callable[[], float] = time.monotonic) -> Any:  # noqa: ANN401 - of httpx or httpx2
    """For `ChatOpenAI(http_client=...)`; whoever makes it closes it.

    A connection per request, cut off at the request's timeout whatever trickles in; no redirect, which would
    take prompts to another host; nothing compressed, which a few bytes could blow up.
    """
    import httpx2
    import openai

    def start(request: Any) -> None:  # noqa: ANN401
        cut_off = _CutOff(request.extensions["timeout"]["read"], clock())
        request.headers["Accept-Encoding"] = "identity"
        request.extensions = {**request.extensions, _CUT_OFF: cut_off, "trace": cut_off.on_event}

    def bound(response: Any) -> None:  # noqa: ANN401
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            response.request.extensions[_CUT_OFF].cancel()
            raise httpx2.DecodingError("the reply is compressed", request=response.request)
        response.stream = _bounded(response, clock)

    hooks: dict[str, list[Callable[..., Any]]] = {"request": [start], "response": [bound]}
    limits = httpx2.Limits(max_keepalive_connections=0)
    return openai.DefaultHttpxClient(event_hooks=hooks, follow_redirects=False, limits=limits)


class _CutOff:
    """Ends a request's connection in time: timeouts of a socket are for silence, and headers can trickle."""

    def __init__(self, limit_s: float, now: float) -> None:
        self.at = now + limit_s
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(limit_s + _GRACE_S, self._end)
        self._timer.daemon = True
        self._timer.start()

    def on_event(self, name: str, info: Mapping[str, Any]) -> None:
        """The `trace` extension of httpcore."""
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")
        elif name.endswith((".response_closed.complete", ".failed")):
            self.cancel()

    def cancel(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        if self._socket is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # TLS's own would wait for its lock


def _bounded(response: Any, clock: Callable[[], float]) -> Any:  # noqa: ANN401
    """The SDK's timeout is for silence; a reply that trickles or never ends is given up here."""
    import httpx2

    inner, give_up_at = response.stream, response.request.extensions[_CUT_OFF].at

    class BoundedStream(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            received = 0
            for chunk in inner:
                received += len(chunk)
                if clock() > give_up_at:
                    raise httpx2.ReadTimeout("the reply takes too long", request=response.request)
                if received > MAX_REPLY_BYTES:
                    raise httpx2.ReadError("the reply is too long", request=response.request)
                yield chunk

        def close(self) -> None:
            inner.close()

    return BoundedStream()
