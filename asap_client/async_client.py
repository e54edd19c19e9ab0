"""The client for asyncio; `make client` writes generated/client.py from it."""

from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import anyio
import httpx
from anyio.to_thread import run_sync

from asap_client.core import Attempt, Call, Done, Pause, Steps, advance, http_options, send_steps
from asap_client.generated.async_operations import AsyncOperations
from asap_client.generated.models import Event, SessionWithRequest, TraceWithFiles
from asap_client.operations import PART_BYTES, Follower, upload_steps, wait_steps

T = TypeVar("T")


class AsyncClient(AsyncOperations):
    """Keeps connections open; close it, or use it in an `async with` statement."""

    def __init__(
        self, server: str, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(**http_options(server, key), transport=transport)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        return await self.perform(send_steps(call))

    async def wait(self, id: str, timeout_s: float | None = None) -> SessionWithRequest:
        """Until it ends or waits for a decision."""
        return await self.perform(wait_steps(id, timeout_s))

    async def events(self, id: str, after: int = 0) -> AsyncIterator[Event]:
        """Every event once, in order, until the session ends; reconnects by itself."""
        follower = Follower(id, after)
        while not follower.is_done:
            try:
                async with self._http.stream(
                    "GET", follower.address, headers=follower.headers, timeout=follower.timeout
                ) as response:
                    if response.is_error:
                        await response.aread()
                    if follower.accepts(response):
                        async for line in response.aiter_lines():
                            if event := follower.feed(line):
                                yield event
            except httpx.TransportError as error:
                follower.fail(error)
            if not follower.is_done:
                await anyio.sleep(follower.pause_s)

    async def upload(
        self, folder: Path, name: str | None = None, into: str | None = None, part_bytes: int = PART_BYTES
    ) -> TraceWithFiles:
        """Uploads a folder of traces; `into` resumes an interrupted upload."""
        return await self.perform(upload_steps(folder, name, into, part_bytes))

    async def perform(self, steps: Steps[T]) -> T:
        """What the steps return; the other calls are made of it."""
        attempt: Attempt = None
        while True:
            step = await run_sync(advance, steps, attempt)  # an upload reads files
            if isinstance(step, Done):
                return step.value
            if isinstance(step, Pause):
                await anyio.sleep(step.seconds)
                attempt = None
                continue
            try:
                attempt = await self._http.request(
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
