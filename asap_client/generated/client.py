"""The client."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import httpx

from asap_client.core import Attempt, Call, Done, Pause, Steps, advance, http_options, send_steps
from asap_client.generated.models import Event, SessionWithRequest, TraceWithFiles
from asap_client.generated.operations import Operations
from asap_client.operations import PART_BYTES, Follower, upload_steps, wait_steps

T = TypeVar("T")


class Client(Operations):
    """Keeps connections open; close it, or use it in a `with` statement. Threads may share one."""

    def __init__(
        self, server: str, key: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._http = httpx.Client(**http_options(server, key), transport=transport)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def send(self, call: Call[T]) -> T:
        return self.perform(send_steps(call))

    def wait(self, id: str, timeout_s: float | None = None) -> SessionWithRequest:
        """Until it ends or waits for a decision."""
        return self.perform(wait_steps(id, timeout_s))

    def events(self, id: str, after: int = 0) -> Iterator[Event]:
        """Every event once, in order, until the session ends; reconnects by itself."""
        follower = Follower(id, after)
        while not follower.is_done:
            try:
                with self._http.stream(
                    "GET", follower.address, headers=follower.headers, timeout=follower.timeout
                ) as response:
                    if response.is_error:
                        response.read()
                    if follower.accepts(response):
                        for line in response.iter_lines():
                            if event := follower.feed(line):
                                yield event
            except httpx.TransportError as error:
                follower.fail(error)
            if not follower.is_done:
                time.sleep(follower.pause_s)

    def upload(
        self, folder: Path, name: str | None = None, into: str | None = None, part_bytes: int = PART_BYTES
    ) -> TraceWithFiles:
        """Uploads a folder of traces; `into` resumes an interrupted upload."""
        return self.perform(upload_steps(folder, name, into, part_bytes))

    def perform(self, steps: Steps[T]) -> T:
        """What the steps return; the other calls are made of it."""
        attempt: Attempt = None
        while True:
            step = advance(steps, attempt)
            if isinstance(step, Done):
                return step.value
            if isinstance(step, Pause):
                time.sleep(step.seconds)
                attempt = None
                continue
            try:
                attempt = self._http.request(
                    step.method,
                    step.path,
                    json=step.json,
                    content=step.content,
                    params=step.params,
                    headers=step.headers,
                    timeout=step.timeout,
                )
            except httpx.TransportError as error:
                attempt = error
