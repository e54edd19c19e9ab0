"""The client for asyncio: the same methods as `Client`, awaited."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import httpx
from anyio.to_thread import run_sync

from asap_client import calls as endpoints
from asap_client import models
from asap_client.calls import (
    Body,
    Call,
    Done,
    Outcome,
    Pause,
    ReportForm,
    Steps,
    advance,
    http_options,
    request_options,
    sent,
)
from asap_client.events import PART_BYTES, Follower, uploaded, waited
from asap_client.models import Data, Event, Session, SessionPage, SessionWithRequest

T = TypeVar("T")


class AsyncClient:
    """Keeps connections open; close it, or use it in an `async with` statement."""

    def __init__(
        self, server: str, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(**http_options(server, key), transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        return await self._drive(sent(call))

    async def submit(self, body: Body, idempotency_key: str | None = None) -> Session:
        return await self.send(endpoints.submit(body, idempotency_key))

    async def sessions(self, **filters: object) -> SessionPage:
        """Filters: state, device, model, label, text, cursor, limit."""
        return await self.send(endpoints.list_sessions(**filters))

    async def all_sessions(self, **filters: object) -> AsyncIterator[Session]:
        """Page after page."""
        cursor: object = filters.pop("cursor", None)
        while True:
            page = await self.sessions(**filters, cursor=cursor)
            for session in page.items:
                yield session
            cursor = page.next_cursor
            if cursor is None:
                return

    async def session(self, id: str) -> SessionWithRequest:
        return await self.send(endpoints.get_session(id))

    async def wait(self, id: str, timeout_s: float | None = None) -> SessionWithRequest:
        """Until it is over or waits for a person."""
        return await self._drive(waited(id, timeout_s))

    async def events(self, id: str, after: int = 0) -> AsyncIterator[Event]:
        """Every event once, in order, to the end of the session; reconnects by itself."""
        follower = Follower(id, after)
        while not follower.is_done:
            try:
                async for event in self._connection(follower):
                    yield event
            except httpx.TransportError as error:
                follower.fail(error)
            if not follower.is_done:
                await anyio.sleep(follower.pause_s)

    async def delete(self, id: str) -> None:
        return await self.send(endpoints.delete_session(id))

    async def cancel(self, id: str) -> Session:
        return await self.send(endpoints.cancel(id))

    async def retry(self, id: str) -> Session:
        return await self.send(endpoints.retry(id))

    async def decide(self, id: str, decision: Body, idempotency_key: str | None = None) -> Session:
        return await self.send(endpoints.decide(id, decision, idempotency_key))

    async def report(self, id: str) -> Data:
        return await self.send(endpoints.report(id))

    async def report_text(self, id: str, form: ReportForm = "text/markdown") -> str:
        return await self.send(endpoints.report_text(id, form))

    async def proposals(self, id: str) -> list[Data]:
        return await self.send(endpoints.proposals(id))

    async def export(self, id: str, rank: int, format: str) -> models.Export:
        return await self.send(endpoints.export(id, rank, format))

    async def upload(
        self, folder: Path, name: str | None = None, into: str | None = None, part_bytes: int = PART_BYTES
    ) -> models.TraceWithFiles:
        """A folder of traces; with `into` an upload that was broken off goes on."""
        return await self._drive(uploaded(folder, name, into, part_bytes))

    async def trace(self, id: str) -> models.TraceWithFiles:
        return await self.send(endpoints.get_trace(id))

    async def traces(self, **filters: object) -> models.TracePage:
        return await self.send(endpoints.list_traces(**filters))

    async def delete_trace(self, id: str) -> None:
        return await self.send(endpoints.delete_trace(id))

    async def predict(self, scenario: Body) -> Data:
        return await self.send(endpoints.predict(scenario))

    async def predict_batch(self, scenarios: Sequence[Body]) -> list[Data]:
        return await self.send(endpoints.predict_batch(scenarios))

    async def search_plans(self, scenario: Body) -> Data:
        return await self.send(endpoints.search_plans(scenario))

    async def explain_plan(self, scenario: Body, plan: Body) -> Data:
        return await self.send(endpoints.explain_plan(scenario, plan))

    async def hardware(self) -> list[Data]:
        return await self.send(endpoints.list_hardware())

    async def device(self, name: str) -> Data:
        return await self.send(endpoints.get_hardware(name))

    async def search_knowledge(self, query: str, **facets: object) -> models.Hits:
        return await self.send(endpoints.search_knowledge(query, **facets))

    async def knowledge(self, id: str) -> models.Entry:
        return await self.send(endpoints.get_knowledge(id))

    async def add_case(self, case: Body) -> models.Entry:
        return await self.send(endpoints.add_case(case))

    async def mark_case(self, id: str, mark: Body) -> models.Entry:
        return await self.send(endpoints.mark_case(id, mark))

    async def ready(self) -> Data:
        return await self.send(endpoints.ready())

    async def _connection(self, follower: Follower) -> AsyncIterator[Event]:
        async with self._http.stream(
            "GET", follower.address, headers=follower.headers, timeout=follower.timeout
        ) as response:
            if response.is_error:
                await response.aread()
            if follower.accepts(response):
                async for line in response.aiter_lines():
                    if event := follower.feed(line):
                        yield event

    async def _drive(self, steps: Steps[T]) -> T:
        # In a thread: the steps of an upload read files.
        step = await run_sync(advance, steps, None)
        while not isinstance(step, Done):
            step = await run_sync(advance, steps, await self._perform(step))
        return step.value

    async def _perform(self, step: Call[Any] | Pause) -> Outcome:
        if isinstance(step, Pause):
            await anyio.sleep(step.seconds)
            return None
        try:
            return await self._http.request(step.method, step.path, **request_options(step))
        except httpx.TransportError as error:
            return error
