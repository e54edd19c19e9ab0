"""Every endpoint as a function that returns a call, how a call is retried, and the connection's options.

No I/O here: `Client` and `AsyncClient` perform the calls.
"""

import math
import random
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from asap_client import __version__
from asap_client.errors import InputError, ProblemError, UnreachableError
from asap_client.models import (
    Entry,
    Export,
    Hits,
    JsonObject,
    Record,
    Session,
    SessionPage,
    SessionWithRequest,
    Trace,
    TraceFile,
    TracePage,
    TraceWithFiles,
)

T = TypeVar("T")
MAX_ATTEMPTS = 6
FIRST_PAUSE_S = 0.2
MAX_PAUSE_S = 5.0
MAX_RETRY_AFTER_S = 60.0
TRANSIENT = frozenset({429, 502, 503, 504})
"""Statuses after which a retry may succeed."""
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
NOT_FOUND = 404


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. An idempotent one is retried after a lost response.

    `patience_s` bounds each attempt, and how long it is retried.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    idempotent: bool = True
    patience_s: float = math.inf


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Done(Generic[T]):
    value: T


Outcome = httpx.Response | httpx.TransportError | None
"""The response to a call, or the error in place of one; None after a pause."""
Steps = Generator[Call[Any] | Pause, Outcome, T]


def advance(steps: Steps[T], outcome: Outcome) -> Call[Any] | Pause | Done[T]:
    """The next step to perform, or the result."""
    try:
        return steps.send(outcome)
    except StopIteration as done:
        return Done(done.value)


def send_steps(call: Call[T]) -> Steps[T]:
    """Sends a call, with retries; raises ProblemError or UnreachableError."""
    ends_at = time.monotonic() + call.patience_s
    for attempt in range(1, MAX_ATTEMPTS + 1):
        outcome = yield call
        if isinstance(outcome, httpx.Response) and outcome.status_code not in TRANSIENT:
            return _read(call, outcome, attempt)
        if attempt == MAX_ATTEMPTS or not _may_retry(call, outcome):
            break
        pause = Pause(pause_s(attempt, outcome))
        if time.monotonic() + pause.seconds > ends_at:
            break
        yield pause
    if isinstance(outcome, httpx.Response):
        raise ProblemError.from_response(outcome)
    raise UnreachableError(call.method, call.path, outcome)


def pause_s(attempt: int, outcome: Outcome = None) -> float:
    """Exponential backoff with jitter; at least what the server's Retry-After says."""
    backoff_s = min(FIRST_PAUSE_S * 2.0 ** (attempt - 1), MAX_PAUSE_S) * random.uniform(0.5, 1)
    retry_after = str(outcome.headers.get("Retry-After", "")) if isinstance(outcome, httpx.Response) else ""
    return max(backoff_s, min(float(retry_after), MAX_RETRY_AFTER_S)) if retry_after.isdigit() else backoff_s


def _may_retry(call: Call[Any], outcome: Outcome) -> bool:
    if call.idempotent or isinstance(outcome, NOT_SENT):
        return True
    # Refused before anything was done.
    return isinstance(outcome, httpx.Response) and outcome.status_code in (429, 503)


def _read(call: Call[T], response: httpx.Response, attempt: int) -> T:
    if response.status_code == NOT_FOUND and call.method == "DELETE" and attempt > 1:
        return call.read(response)  # the first attempt did it, and its response was lost
    if response.is_error:
        raise ProblemError.from_response(response)
    try:
        if not response.has_redirect_location:
            return call.read(response)
    except ValueError:  # no JSON, or not the expected fields
        pass
    raise ProblemError.from_stranger(response)


RESPONSE_TIMEOUT_S, CONNECT_TIMEOUT_S = 60.0, 5.0
MAX_CONNECTIONS = 100


def http_options(server: str, key: str | None) -> dict[str, Any]:
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise InputError("server", server, "allowed: http://host:port or https://host")
    headers = {"User-Agent": f"asap-client/{__version__}"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    return {
        "base_url": server.rstrip("/"),
        "headers": headers,
        "limits": httpx.Limits(max_connections=MAX_CONNECTIONS),
    }


def request_options(call: Call[Any]) -> dict[str, Any]:
    """Arguments of `httpx.Client.request` for one call."""
    body = {"json": call.json} if call.json is not None else {"content": call.content}
    timeout = httpx.Timeout(min(call.patience_s, RESPONSE_TIMEOUT_S), connect=CONNECT_TIMEOUT_S)
    return {**body, "params": dict(call.params), "headers": dict(call.headers), "timeout": timeout}


R = TypeVar("R", bound=Record)
Body = Mapping[str, Any]
ReportForm = Literal["text/markdown", "text/html"]
SESSIONS, TRACES, KNOWLEDGE = "/v1/sessions", "/v1/traces", "/v1/knowledge"
MEASUREMENTS = "/v1/measurements"


def as_record(kind: type[R]) -> Callable[[httpx.Response], R]:
    return lambda response: kind.from_json(response.json())


def as_json(response: httpx.Response) -> Any:  # noqa: ANN401 - any JSON
    return response.json()


def as_text(response: httpx.Response) -> str:
    return response.text


def as_nothing(response: httpx.Response) -> None:
    return None


def path(*parts: str | int) -> str:
    """Escapes what callers pass, so that an id cannot become another address."""
    return "/".join(quote(str(part), safe="") for part in parts)


def stated(**params: object) -> dict[str, Any]:
    """Without the ones that are None."""
    return {name: value for name, value in params.items() if value is not None}


def submit(body: Body, idempotency_key: str | None) -> Call[Session]:
    """Always sends an idempotency key: a retry after a lost response must not create a second session."""
    key = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    return Call("POST", SESSIONS, as_record(Session), json=dict(body), headers=key)


def list_sessions(**filters: object) -> Call[SessionPage]:
    return Call("GET", SESSIONS, as_record(SessionPage), params=stated(**filters))


def get_session(id: str) -> Call[SessionWithRequest]:
    return Call("GET", f"{SESSIONS}/{path(id)}", as_record(SessionWithRequest))


def delete_session(id: str) -> Call[None]:
    return Call("DELETE", f"{SESSIONS}/{path(id)}", as_nothing)


def cancel(id: str) -> Call[Session]:
    return Call("POST", f"{SESSIONS}/{path(id)}/cancel", as_record(Session))


def retry(id: str) -> Call[Session]:
    """Not idempotent: a second attempt would find the session queued and be refused."""
    return Call("POST", f"{SESSIONS}/{path(id)}/retry", as_record(Session), idempotent=False)


def decide(id: str, decision: Body, idempotency_key: str | None) -> Call[Session]:
    key = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
    place = f"{SESSIONS}/{path(id)}/decision"
    return Call("POST", place, as_record(Session), json=dict(decision), headers=key)


def ask(id: str, question: str) -> Call[JsonObject]:
    return Call("POST", f"{SESSIONS}/{path(id)}/ask", as_json, json={"question": question})


def report(id: str) -> Call[JsonObject]:
    return Call("GET", f"{SESSIONS}/{path(id)}/report", as_json, headers={"Accept": "application/json"})


def report_text(id: str, form: ReportForm) -> Call[str]:
    return Call("GET", f"{SESSIONS}/{path(id)}/report", as_text, headers={"Accept": form})


def proposals(id: str) -> Call[list[JsonObject]]:
    return Call("GET", f"{SESSIONS}/{path(id)}/proposals", lambda response: list(response.json()["items"]))


def export(id: str, rank: int, format: str) -> Call[Export]:
    place = f"{SESSIONS}/{path(id)}/proposals/{path(rank)}/export"
    return Call("GET", place, as_record(Export), params={"format": format})


def create_trace(name: str) -> Call[Trace]:
    """Not idempotent: a second attempt would create another upload, which nobody completes."""
    return Call("POST", TRACES, as_record(Trace), json={"name": name}, idempotent=False)


def put_part(id: str, name: str, offset: int, content: bytes) -> Call[TraceFile]:
    place = f"{TRACES}/{path(id)}/files/{path(name)}"
    return Call("PUT", place, as_record(TraceFile), params={"offset": offset}, content=content)


def complete_trace(id: str, digests: Mapping[str, str]) -> Call[TraceWithFiles]:
    body = {"files": dict(digests)}
    return Call("POST", f"{TRACES}/{path(id)}/complete", as_record(TraceWithFiles), json=body)


def get_trace(id: str) -> Call[TraceWithFiles]:
    return Call("GET", f"{TRACES}/{path(id)}", as_record(TraceWithFiles))


def list_traces(**filters: object) -> Call[TracePage]:
    return Call("GET", TRACES, as_record(TracePage), params=stated(**filters))


def delete_trace(id: str) -> Call[None]:
    return Call("DELETE", f"{TRACES}/{path(id)}", as_nothing)


def predict(scenario: Body) -> Call[JsonObject]:
    return Call("POST", "/v1/predict", as_json, json=dict(scenario))


def predict_batch(scenarios: Sequence[Body]) -> Call[list[JsonObject]]:
    return Call("POST", "/v1/predict/batch", as_json, json=[dict(scenario) for scenario in scenarios])


def search_plans(scenario: Body) -> Call[JsonObject]:
    return Call("POST", "/v1/plans/search", as_json, json=dict(scenario))


def explain_plan(scenario: Body, plan: Body) -> Call[JsonObject]:
    return Call("POST", "/v1/plans/explain", as_json, json={"scenario": dict(scenario), "plan": dict(plan)})


def list_hardware() -> Call[list[JsonObject]]:
    return Call("GET", "/v1/hardware", as_json)


def get_hardware(name: str) -> Call[JsonObject]:
    return Call("GET", f"/v1/hardware/{path(name)}", as_json)


def search_knowledge(query: str, **facets: object) -> Call[Hits]:
    return Call("GET", f"{KNOWLEDGE}/search", as_record(Hits), params=stated(q=query, **facets))


def get_knowledge(id: str) -> Call[Entry]:
    return Call("GET", f"{KNOWLEDGE}/{path(id)}", as_record(Entry))


def add_case(case: Body) -> Call[Entry]:
    return Call("POST", KNOWLEDGE, as_record(Entry), json=dict(case))


def mark_case(id: str, mark: Body) -> Call[Entry]:
    return Call("POST", f"{KNOWLEDGE}/{path(id)}/mark", as_record(Entry), json=dict(mark))


def report_runs(runs: Body) -> Call[JsonObject]:
    """`runs` is one run, or an object with several under `runs`."""
    return Call("POST", MEASUREMENTS, as_json, json=dict(runs))


def clusters() -> Call[JsonObject]:
    return Call("GET", MEASUREMENTS, as_json)


def get_cluster(name: str) -> Call[JsonObject]:
    return Call("GET", f"{MEASUREMENTS}/{path(name)}", as_json)


def undo_runs(name: str) -> Call[JsonObject]:
    return Call("DELETE", f"{MEASUREMENTS}/{path(name)}", as_json)


def ready() -> Call[JsonObject]:
    return Call("GET", "/readyz", as_json)
