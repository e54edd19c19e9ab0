"""Every endpoint as a function that makes a call: its path, its parameters, how its answer is read."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx

from service.client_calls import Call
from service.client_models import (
    Data,
    Entry,
    Export,
    Hits,
    Record,
    Session,
    SessionPage,
    SessionWithRequest,
    Trace,
    TraceFile,
    TracePage,
    TraceWithFiles,
)

R = TypeVar("R", bound=Record)
Body = Mapping[str, Any]
ReportForm = Literal["text/markdown", "text/html"]
SESSIONS, TRACES, KNOWLEDGE = "/v1/sessions", "/v1/traces", "/v1/knowledge"


def as_record(kind: type[R]) -> Callable[[httpx.Response], R]:
    return lambda response: kind.model_validate_json(response.content)


def as_json(response: httpx.Response) -> Any:  # noqa: ANN401 - any JSON
    return response.json()


def as_text(response: httpx.Response) -> str:
    return response.text


def as_nothing(response: httpx.Response) -> None:
    return None


def path(*parts: str | int) -> str:
    """What callers give may hold anything; in a path it must not mean anything."""
    return "/".join(quote(str(part), safe="") for part in parts)


def given(**params: object) -> dict[str, Any]:
    return {name: value for name, value in params.items() if value is not None}


def submit(body: Body, idempotency_key: str | None) -> Call[Session]:
    """A key is made where none is given: a lost answer must not mean a second session."""
    key = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    return Call("POST", SESSIONS, as_record(Session), json=dict(body), headers=key)


def list_sessions(**filters: object) -> Call[SessionPage]:
    return Call("GET", SESSIONS, as_record(SessionPage), params=given(**filters))


def get_session(id: str) -> Call[SessionWithRequest]:
    return Call("GET", f"{SESSIONS}/{path(id)}", as_record(SessionWithRequest))


def delete_session(id: str) -> Call[None]:
    return Call("DELETE", f"{SESSIONS}/{path(id)}", as_nothing)


def cancel(id: str) -> Call[Session]:
    return Call("POST", f"{SESSIONS}/{path(id)}/cancel", as_record(Session))


def retry(id: str) -> Call[Session]:
    """Not repeated after a lost answer: the second would find the session queued and be refused."""
    return Call("POST", f"{SESSIONS}/{path(id)}/retry", as_record(Session), repeatable=False)


def decide(id: str, decision: Body, idempotency_key: str | None) -> Call[Session]:
    key = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    place = f"{SESSIONS}/{path(id)}/decision"
    return Call("POST", place, as_record(Session), json=dict(decision), headers=key)


def report(id: str) -> Call[Data]:
    return Call("GET", f"{SESSIONS}/{path(id)}/report", as_json, headers={"Accept": "application/json"})


def report_text(id: str, form: ReportForm) -> Call[str]:
    return Call("GET", f"{SESSIONS}/{path(id)}/report", as_text, headers={"Accept": form})


def proposals(id: str) -> Call[list[Data]]:
    return Call("GET", f"{SESSIONS}/{path(id)}/proposals", lambda response: list(response.json()["items"]))


def export(id: str, rank: int, format: str) -> Call[Export]:
    place = f"{SESSIONS}/{path(id)}/proposals/{path(rank)}/export"
    return Call("GET", place, as_record(Export), params={"format": format})


def create_trace(name: str) -> Call[Trace]:
    """Not repeatable: the second would be another upload, which nobody completes."""
    return Call("POST", TRACES, as_record(Trace), json={"name": name}, repeatable=False)


def put_part(id: str, name: str, offset: int, content: bytes) -> Call[TraceFile]:
    place = f"{TRACES}/{path(id)}/files/{path(name)}"
    return Call("PUT", place, as_record(TraceFile), params={"offset": offset}, content=content)


def complete_trace(id: str, digests: Mapping[str, str]) -> Call[TraceWithFiles]:
    body = {"files": dict(digests)}
    return Call("POST", f"{TRACES}/{path(id)}/complete", as_record(TraceWithFiles), json=body)


def get_trace(id: str) -> Call[TraceWithFiles]:
    return Call("GET", f"{TRACES}/{path(id)}", as_record(TraceWithFiles))


def list_traces(**filters: object) -> Call[TracePage]:
    return Call("GET", TRACES, as_record(TracePage), params=given(**filters))


def delete_trace(id: str) -> Call[None]:
    return Call("DELETE", f"{TRACES}/{path(id)}", as_nothing)


def predict(scenario: Body) -> Call[Data]:
    return Call("POST", "/v1/predict", as_json, json=dict(scenario))


def predict_batch(scenarios: Sequence[Body]) -> Call[list[Data]]:
    return Call("POST", "/v1/predict/batch", as_json, json=[dict(one) for one in scenarios])


def search_plans(scenario: Body) -> Call[Data]:
    return Call("POST", "/v1/plans/search", as_json, json=dict(scenario))


def explain_plan(scenario: Body, plan: Body) -> Call[Data]:
    return Call("POST", "/v1/plans/explain", as_json, json={"scenario": dict(scenario), "plan": dict(plan)})


def list_hardware() -> Call[list[Data]]:
    return Call("GET", "/v1/hardware", as_json)


def get_hardware(name: str) -> Call[Data]:
    return Call("GET", f"/v1/hardware/{path(name)}", as_json)


def search_knowledge(query: str, **facets: object) -> Call[Hits]:
    return Call("GET", f"{KNOWLEDGE}/search", as_record(Hits), params=given(q=query, **facets))


def get_knowledge(id: str) -> Call[Entry]:
    return Call("GET", f"{KNOWLEDGE}/{path(id)}", as_record(Entry))


def add_case(case: Body) -> Call[Entry]:
    return Call("POST", KNOWLEDGE, as_record(Entry), json=dict(case))


def mark_case(id: str, mark: Body) -> Call[Entry]:
    return Call("POST", f"{KNOWLEDGE}/{path(id)}/mark", as_record(Entry), json=dict(mark))


def ready() -> Call[Data]:
    return Call("GET", "/readyz", as_json)
