"""A typed client of the API: `Client` for plain code, `AsyncClient` for asyncio, with the same methods."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from asap_client import calls as endpoints
from asap_client import models
from asap_client.async_client import AsyncClient
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
from asap_client.errors import ProblemError, UnreachableError, WaitError
from asap_client.events import PART_BYTES, Follower, uploaded, waited
from asap_client.models import Data, Event, Session, SessionPage, SessionWithRequest

__all__ = ["AsyncClient", "Client", "ProblemError", "UnreachableError", "WaitError"]

T = TypeVar("T")


class Client:
    """Keeps connections open; close it, or use it in a `with` statement. Threads may share one."""

    def __init__(
        self, server: str, key: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._http = httpx.Client(**http_options(server, key), transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def send(self, call: Call[T]) -> T:
        return self._drive(sent(call))

    def submit(self, body: Body, idempotency_key: str | None = None) -> Session:
        return self.send(endpoints.submit(body, idempotency_key))

    def sessions(self, **filters: object) -> SessionPage:
        """Filters: state, device, model, label, text, cursor, limit."""
        return self.send(endpoints.list_sessions(**filters))

    def all_sessions(self, **filters: object) -> Iterator[Session]:
        """Page after page."""
        cursor: object = filters.pop("cursor", None)
        while True:
            page = self.sessions(**filters, cursor=cursor)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def session(self, id: str) -> SessionWithRequest:
        return self.send(endpoints.get_session(id))

    def wait(self, id: str, timeout_s: float | None = None) -> SessionWithRequest:
        """Until it is over or waits for a person."""
        return self._drive(waited(id, timeout_s))

    def events(self, id: str, after: int = 0) -> Iterator[Event]:
        """Every event once, in order, to the end of the session; reconnects by itself."""
        follower = Follower(id, after)
        while not follower.is_done:
            try:
                yield from self._connection(follower)
            except httpx.TransportError as error:
                follower.fail(error)
            if not follower.is_done:
                time.sleep(follower.pause_s)

    def delete(self, id: str) -> None:
        return self.send(endpoints.delete_session(id))

    def cancel(self, id: str) -> Session:
        return self.send(endpoints.cancel(id))

    def retry(self, id: str) -> Session:
        return self.send(endpoints.retry(id))

    def decide(self, id: str, decision: Body, idempotency_key: str | None = None) -> Session:
        return self.send(endpoints.decide(id, decision, idempotency_key))

    def report(self, id: str) -> Data:
        return self.send(endpoints.report(id))

    def report_text(self, id: str, form: ReportForm = "text/markdown") -> str:
        return self.send(endpoints.report_text(id, form))

    def proposals(self, id: str) -> list[Data]:
        return self.send(endpoints.proposals(id))

    def export(self, id: str, rank: int, format: str) -> models.Export:
        return self.send(endpoints.export(id, rank, format))

    def upload(
        self, folder: Path, name: str | None = None, into: str | None = None, part_bytes: int = PART_BYTES
    ) -> models.TraceWithFiles:
        """A folder of traces; with `into` an upload that was broken off goes on."""
        return self._drive(uploaded(folder, name, into, part_bytes))

    def trace(self, id: str) -> models.TraceWithFiles:
        return self.send(endpoints.get_trace(id))

    def traces(self, **filters: object) -> models.TracePage:
        return self.send(endpoints.list_traces(**filters))

    def delete_trace(self, id: str) -> None:
        return self.send(endpoints.delete_trace(id))

    def predict(self, scenario: Body) -> Data:
        return self.send(endpoints.predict(scenario))

    def predict_batch(self, scenarios: Sequence[Body]) -> list[Data]:
        return self.send(endpoints.predict_batch(scenarios))

    def search_plans(self, scenario: Body) -> Data:
        return self.send(endpoints.search_plans(scenario))

    def explain_plan(self, scenario: Body, plan: Body) -> Data:
        return self.send(endpoints.explain_plan(scenario, plan))

    def hardware(self) -> list[Data]:
        return self.send(endpoints.list_hardware())

    def device(self, name: str) -> Data:
        return self.send(endpoints.get_hardware(name))

    def search_knowledge(self, query: str, **facets: object) -> models.Hits:
        return self.send(endpoints.search_knowledge(query, **facets))

    def knowledge(self, id: str) -> models.Entry:
        return self.send(endpoints.get_knowledge(id))

    def add_case(self, case: Body) -> models.Entry:
        return self.send(endpoints.add_case(case))

    def mark_case(self, id: str, mark: Body) -> models.Entry:
        return self.send(endpoints.mark_case(id, mark))

    def ready(self) -> Data:
        return self.send(endpoints.ready())

    def _connection(self, follower: Follower) -> Iterator[Event]:
        with self._http.stream(
            "GET", follower.address, headers=follower.headers, timeout=follower.timeout
        ) as response:
            if response.is_error:
                response.read()
            if follower.accepts(response):
                for line in response.iter_lines():
                    if event := follower.feed(line):
                        yield event

    def _drive(self, steps: Steps[T]) -> T:
        step = advance(steps, None)
        while not isinstance(step, Done):
            step = advance(steps, self._perform(step))
        return step.value

    def _perform(self, step: Call[Any] | Pause) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self._http.request(step.method, step.path, **request_options(step))
        except httpx.TransportError as error:
            return error
