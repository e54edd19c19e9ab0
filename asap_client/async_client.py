"""The client for asyncio. `make client` writes client.py from this file: edit here."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import anyio
import httpx
from anyio.to_thread import run_sync

from asap_client import calls, models
from asap_client.calls import Body, Call, Done, Outcome, Pause, Steps, advance, send_steps
from asap_client.models import Event, JsonObject, Session, SessionPage, SessionWithRequest
from asap_client.operations import PART_BYTES, Follower, upload_steps, wait_steps

T = TypeVar("T")


class AsyncClient:
    """Keeps connections open; close it, or use it in an `async with` statement."""

    def __init__(
        self, server: str, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._http = httpx.AsyncClient(**calls.http_options(server, key), transport=transport)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        return await self._drive(send_steps(call))

    async def submit(self, body: Body, idempotency_key: str | None = None) -> Session:
        return await self.send(calls.submit(body, idempotency_key))

    async def sessions(self, **filters: object) -> SessionPage:
        """Filters: state, device, model, label, text, cursor, limit."""
        return await self.send(calls.list_sessions(**filters))

    async def all_sessions(self, **filters: object) -> AsyncIterator[Session]:
        """Follows the cursor through all pages."""
        cursor: object = filters.pop("cursor", None)
        while True:
            page = await self.sessions(**filters, cursor=cursor)
            for session in page.items:
                yield session
            cursor = page.next_cursor
            if cursor is None:
                return

    async def session(self, id: str) -> SessionWithRequest:
        return await self.send(calls.get_session(id))

    async def wait(self, id: str, timeout_s: float | None = None) -> SessionWithRequest:
        """Until it ends or waits for a decision."""
        return await self._drive(wait_steps(id, timeout_s))

    async def events(self, id: str, after: int = 0) -> AsyncIterator[Event]:
        """Every event once, in order, until the session ends; reconnects by itself."""
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
        return await self.send(calls.delete_session(id))

    async def cancel(self, id: str) -> Session:
        return await self.send(calls.cancel(id))

    async def retry(self, id: str) -> Session:
        return await self.send(calls.retry(id))

    async def decide(self, id: str, decision: Body, idempotency_key: str | None = None) -> Session:
        return await self.send(calls.decide(id, decision, idempotency_key))

    async def ask(self, id: str, question: str) -> JsonObject:
        """An answer about a finished session, with who wrote it and the tools it rests on."""
        return await self.send(calls.ask(id, question))

    async def report(self, id: str) -> JsonObject:
        return await self.send(calls.report(id))

    async def report_text(self, id: str, form: calls.ReportForm = "text/markdown") -> str:
        return await self.send(calls.report_text(id, form))

    async def proposals(self, id: str) -> list[JsonObject]:
        return await self.send(calls.proposals(id))

    async def export(self, id: str, rank: int, format: str) -> models.Export:
        return await self.send(calls.export(id, rank, format))

    async def upload(
        self, folder: Path, name: str | None = None, into: str | None = None, part_bytes: int = PART_BYTES
    ) -> models.TraceWithFiles:
        """Uploads a folder of traces; `into` resumes an interrupted upload."""
        return await self._drive(upload_steps(folder, name, into, part_bytes))

    async def trace(self, id: str) -> models.TraceWithFiles:
        return await self.send(calls.get_trace(id))

    async def traces(self, **filters: object) -> models.TracePage:
        return await self.send(calls.list_traces(**filters))

    async def delete_trace(self, id: str) -> None:
        return await self.send(calls.delete_trace(id))

    async def predict(self, scenario: Body) -> JsonObject:
        return await self.send(calls.predict(scenario))

    async def predict_batch(self, scenarios: Sequence[Body]) -> list[JsonObject]:
        return await self.send(calls.predict_batch(scenarios))

    async def search_plans(self, scenario: Body) -> JsonObject:
        return await self.send(calls.search_plans(scenario))

    async def explain_plan(self, scenario: Body, plan: Body) -> JsonObject:
        return await self.send(calls.explain_plan(scenario, plan))

    async def hardware(self) -> list[JsonObject]:
        return await self.send(calls.list_hardware())

    async def device(self, name: str) -> JsonObject:
        return await self.send(calls.get_hardware(name))

    async def search_knowledge(self, query: str, **facets: object) -> models.Hits:
        return await self.send(calls.search_knowledge(query, **facets))

    async def knowledge(self, id: str) -> models.Entry:
        return await self.send(calls.get_knowledge(id))

    async def add_case(self, case: Body) -> models.Entry:
        return await self.send(calls.add_case(case))

    async def mark_case(self, id: str, mark: Body) -> models.Entry:
        return await self.send(calls.mark_case(id, mark))

    async def report_runs(self, runs: Body) -> JsonObject:
        """Runs of a named cluster calibrate its predictions; rows as of `asap calibrate`."""
        return await self.send(calls.report_runs(runs))

    async def clusters(self) -> JsonObject:
        return await self.send(calls.clusters())

    async def cluster(self, name: str) -> JsonObject:
        return await self.send(calls.get_cluster(name))

    async def undo_runs(self, name: str) -> JsonObject:
        """Takes back those that were reported last."""
        return await self.send(calls.undo_runs(name))

    async def ready(self) -> JsonObject:
        return await self.send(calls.ready())

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
        outcome: Outcome = None
        while True:
            step = await run_sync(advance, steps, outcome)  # an upload reads files
            if isinstance(step, Done):
                return step.value
            outcome = await self._perform(step)

    async def _perform(self, step: Call[Any] | Pause) -> Outcome:
        if isinstance(step, Pause):
            await anyio.sleep(step.seconds)
            return None
        try:
            return await self._http.request(step.method, step.path, **calls.request_options(step))
        except httpx.TransportError as error:
            return error
