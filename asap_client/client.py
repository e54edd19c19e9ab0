"""The client. Written by `make client` from async_client.py: edit there."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import httpx

from asap_client import calls, models
from asap_client.calls import Body, Call, Done, Outcome, Pause, Steps, advance, send_steps
from asap_client.models import Event, JsonObject, Session, SessionPage, SessionWithRequest
from asap_client.operations import PART_BYTES, Follower, upload_steps, wait_steps

T = TypeVar("T")


class Client:
    """Keeps connections open; close it, or use it in a `with` statement. Threads may share one."""

    def __init__(
        self, server: str, key: str | None = None, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._http = httpx.Client(**calls.http_options(server, key), transport=transport)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def send(self, call: Call[T]) -> T:
        return self._drive(send_steps(call))

    def submit(self, body: Body, idempotency_key: str | None = None) -> Session:
        return self.send(calls.submit(body, idempotency_key))

    def sessions(self, **filters: object) -> SessionPage:
        """Filters: state, device, model, label, text, cursor, limit."""
        return self.send(calls.list_sessions(**filters))

    def all_sessions(self, **filters: object) -> Iterator[Session]:
        """Follows the cursor through all pages."""
        cursor: object = filters.pop("cursor", None)
        while True:
            page = self.sessions(**filters, cursor=cursor)
            yield from page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    def session(self, id: str) -> SessionWithRequest:
        return self.send(calls.get_session(id))

    def wait(self, id: str, timeout_s: float | None = None) -> SessionWithRequest:
        """Until it ends or waits for a decision."""
        return self._drive(wait_steps(id, timeout_s))

    def events(self, id: str, after: int = 0) -> Iterator[Event]:
        """Every event once, in order, until the session ends; reconnects by itself."""
        follower = Follower(id, after)
        while not follower.is_done:
            try:
                yield from self._connection(follower)
            except httpx.TransportError as error:
                follower.fail(error)
            if not follower.is_done:
                time.sleep(follower.pause_s)

    def delete(self, id: str) -> None:
        return self.send(calls.delete_session(id))

    def cancel(self, id: str) -> Session:
        return self.send(calls.cancel(id))

    def retry(self, id: str) -> Session:
        return self.send(calls.retry(id))

    def decide(self, id: str, decision: Body, idempotency_key: str | None = None) -> Session:
        return self.send(calls.decide(id, decision, idempotency_key))

    def ask(self, id: str, question: str) -> JsonObject:
        """An answer about a finished session, with who wrote it and the tools it rests on."""
        return self.send(calls.ask(id, question))

    def report(self, id: str) -> JsonObject:
        return self.send(calls.report(id))

    def report_text(self, id: str, form: calls.ReportForm = "text/markdown") -> str:
        return self.send(calls.report_text(id, form))

    def proposals(self, id: str) -> list[JsonObject]:
        return self.send(calls.proposals(id))

    def export(self, id: str, rank: int, format: str) -> models.Export:
        return self.send(calls.export(id, rank, format))

    def upload(
        self, folder: Path, name: str | None = None, into: str | None = None, part_bytes: int = PART_BYTES
    ) -> models.TraceWithFiles:
        """Uploads a folder of traces; `into` resumes an interrupted upload."""
        return self._drive(upload_steps(folder, name, into, part_bytes))

    def trace(self, id: str) -> models.TraceWithFiles:
        return self.send(calls.get_trace(id))

    def traces(self, **filters: object) -> models.TracePage:
        return self.send(calls.list_traces(**filters))

    def delete_trace(self, id: str) -> None:
        return self.send(calls.delete_trace(id))

    def predict(self, scenario: Body) -> JsonObject:
        return self.send(calls.predict(scenario))

    def predict_batch(self, scenarios: Sequence[Body]) -> list[JsonObject]:
        return self.send(calls.predict_batch(scenarios))

    def search_plans(self, scenario: Body) -> JsonObject:
        return self.send(calls.search_plans(scenario))

    def explain_plan(self, scenario: Body, plan: Body) -> JsonObject:
        return self.send(calls.explain_plan(scenario, plan))

    def hardware(self) -> list[JsonObject]:
        return self.send(calls.list_hardware())

    def device(self, name: str) -> JsonObject:
        return self.send(calls.get_hardware(name))

    def search_knowledge(self, query: str, **facets: object) -> models.Hits:
        return self.send(calls.search_knowledge(query, **facets))

    def knowledge(self, id: str) -> models.Entry:
        return self.send(calls.get_knowledge(id))

    def add_case(self, case: Body) -> models.Entry:
        return self.send(calls.add_case(case))

    def mark_case(self, id: str, mark: Body) -> models.Entry:
        return self.send(calls.mark_case(id, mark))

    def report_runs(self, runs: Body) -> JsonObject:
        """Runs of a named cluster calibrate its predictions; rows as of `asap calibrate`."""
        return self.send(calls.report_runs(runs))

    def clusters(self) -> JsonObject:
        return self.send(calls.clusters())

    def cluster(self, name: str) -> JsonObject:
        return self.send(calls.get_cluster(name))

    def undo_runs(self, name: str) -> JsonObject:
        """Takes back those that were reported last."""
        return self.send(calls.undo_runs(name))

    def ready(self) -> JsonObject:
        return self.send(calls.ready())

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
        outcome: Outcome = None
        while True:
            step = advance(steps, outcome)
            if isinstance(step, Done):
                return step.value
            outcome = self._perform(step)

    def _perform(self, step: Call[Any] | Pause) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self._http.request(step.method, step.path, **calls.request_options(step))
        except httpx.TransportError as error:
            return error
