"""The HTTP client under the chat model: a reply that trickles or never ends is given up.

The client's own timeout starts anew with every byte; here a request has a time and a size as a whole.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

MOST_REPLY_BYTES = 8_000_000
_STARTED = "asap_started"


def bounded_client(clock: Callable[[], float] = time.monotonic) -> Any:  # noqa: ANN401 - of httpx or httpx2
    """For `ChatOpenAI(http_client=...)`; whoever makes it closes it."""
    import openai

    def start(request: Any) -> None:  # noqa: ANN401
        request.extensions = {**request.extensions, _STARTED: clock()}

    def bound(response: Any) -> None:  # noqa: ANN401
        response.stream = _bounded(response, clock)

    return openai.DefaultHttpxClient(event_hooks={"request": [start], "response": [bound]})


def _bounded(response: Any, clock: Callable[[], float]) -> Any:  # noqa: ANN401
    import httpx2

    inner, limits = response.stream, response.request.extensions
    give_up_at = limits[_STARTED] + limits["timeout"]["read"]

    class BoundedStream(httpx2.SyncByteStream):
        def __iter__(self) -> Iterator[bytes]:
            received = 0
            for chunk in inner:
                received += len(chunk)
                if clock() > give_up_at:
                    raise httpx2.ReadTimeout("the reply takes too long", request=response.request)
                if received > MOST_REPLY_BYTES:
                    raise httpx2.ReadError("the reply is too long", request=response.request)
                yield chunk

        def close(self) -> None:
            inner.close()

    return BoundedStream()
