"""Every endpoint as a function that makes a call, how a call is retried, and the options of a connection.

No input or output here: `Client` and `AsyncClient` perform the calls.
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

from asap_client.errors import ProblemError, UnreachableError
from asap_client.models import (
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
from service import __version__
from tools.errors import InputError

T = TypeVar("T")
TRIES = 6
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
PASSING = frozenset({429, 502, 503, 504})
"""Statuses that may be different in a moment."""
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
NOT_FOUND = 404


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. `repeatable` ones may be sent twice without harm.

    `patience_s` is how long one try may take, and for how long it is sent again.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T]
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = True
    patience_s: float = math.inf


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Done(Generic[T]):
    value: T


Outcome = httpx.Response | httpx.TransportError | None
"""Of a call: the answer, or that there was none. Of a pause: nothing."""
Steps = Generator[Call[Any] | Pause, Outcome, T]


def advance(steps: Steps[T], outcome: Outcome) -> Call[Any] | Pause | Done[T]:
    """The next thing to perform, or the result."""
    try:
        return steps.send(outcome)
    except StopIteration as done:
        return Done(done.value)


def sent(call: Call[T]) -> Steps[T]:
    """Sends a call until it is answered for good; raises ProblemError or UnreachableError."""
    ends_at = time.monotonic() + call.patience_s
    for attempt in range(1, TRIES + 1):
        outcome = yield call
        if isinstance(outcome, httpx.Response) and outcome.status_code not in PASSING:
            return _read(call, outcome, attempt)
        if attempt == TRIES or not _may_repeat(call, outcome):
            break
        pause = Pause(pause_s(attempt, outcome))
        if time.monotonic() + pause.seconds > ends_at:
            break
        yield pause
    if isinstance(outcome, httpx.Response):
        raise ProblemError.of(outcome)
    raise UnreachableError(call.method, call.path, outcome)


def pause_s(attempt: int, outcome: Outcome = None) -> float:
    """Doubling, with chance so that callers do not come back together; a server's wish counts more."""
    own = min(FIRST_PAUSE_S * 2.0 ** (attempt - 1), LONGEST_PAUSE_S) * random.uniform(0.5, 1)
    asked = str(outcome.headers.get("Retry-After", "")) if isinstance(outcome, httpx.Response) else ""
    return max(own, min(float(asked), 60.0)) if asked.isdigit() else own


def _may_repeat(call: Call[Any], outcome: Outcome) -> bool:
    if call.repeatable or isinstance(outcome, NOT_SENT):
        return True
    # Refused before anything was done.
    return isinstance(outcome, httpx.Response) and outcome.status_code in (429, 503)


def _read(call: Call[T], response: httpx.Response, attempt: int) -> T:
    if response.status_code == NOT_FOUND and call.method == "DELETE" and attempt > 1:
        return call.read(response)  # the first try did it, and its answer was lost
    if response.is_error:
        raise ProblemError.of(response)
    try:
        if not response.has_redirect_location:
            return call.read(response)
    except ValueError:  # pydantic's and json's
        pass
    raise ProblemError.of_another(response)


ANSWER_S, CONNECT_S = 60.0, 5.0
MOST_CONNECTIONS = 100


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
        "limits": httpx.Limits(max_connections=MOST_CONNECTIONS),
    }


def request_options(call: Call[Any]) -> dict[str, Any]:
    """Of one call, for httpx."""
    body = {"json": call.json} if call.json is not None else {"content": call.content}
    timeout = httpx.Timeout(min(call.patience_s, ANSWER_S), connect=CONNECT_S)
    return {**body, "params": dict(call.params), "headers": dict(call.headers), "timeout": timeout}


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
