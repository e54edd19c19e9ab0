"""What every call shares: its shape, how it is retried, how its response becomes a record, the connection.

No I/O here: `Client` and `AsyncClient` perform the steps. The calls themselves are in generated/calls.py.
"""

import math
import random
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from functools import cache
from types import UnionType
from typing import (
    Any,
    Generic,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from urllib.parse import quote, urlsplit

import httpx

from asap_client import __version__
from asap_client.errors import InputError, ProblemError, UnreachableError

MAX_ATTEMPTS = 6
FIRST_PAUSE_S, MAX_PAUSE_S, MAX_RETRY_AFTER_S = 0.2, 5.0, 60.0
RESPONSE_TIMEOUT_S, CONNECT_TIMEOUT_S = 60.0, 5.0
MAX_CONNECTIONS = 100
TRANSIENT = frozenset({429, 502, 503, 504})
"""Statuses after which a retry may succeed."""
REFUSED_UNREAD = frozenset({429, 503})
"""Statuses of a request that was refused before anything was done."""
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
NOT_FOUND = 404

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R", bound="Record")
JsonObject = dict[str, Any]
Body = Mapping[str, Any]
Param = str | int | float | Sequence[str]


@dataclass(frozen=True)
class Call(Generic[T_co]):
    """One request. An idempotent one is retried after a lost response.

    `patience_s` bounds each attempt, and how long it is retried.
    """

    method: str
    path: str
    read: Callable[[httpx.Response], T_co]
    params: Mapping[str, Param] = field(default_factory=dict)
    json: object = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    idempotent: bool = True
    patience_s: float = math.inf

    @property
    def timeout(self) -> httpx.Timeout:
        return httpx.Timeout(min(self.patience_s, RESPONSE_TIMEOUT_S), connect=CONNECT_TIMEOUT_S)


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Done(Generic[T]):
    value: T


Attempt = httpx.Response | httpx.TransportError | None
"""The response to a call, or the error in place of one; None after a pause."""
Steps = Generator[Call[object] | Pause, Attempt, T]


def advance(steps: Steps[T], attempt: Attempt) -> Call[object] | Pause | Done[T]:
    """The next step to perform, or the result."""
    try:
        return steps.send(attempt)
    except StopIteration as done:
        return Done(done.value)


def send_steps(call: Call[T]) -> Steps[T]:
    """Sends a call, with retries; raises ProblemError or UnreachableError."""
    ends_at = time.monotonic() + call.patience_s
    for number in range(1, MAX_ATTEMPTS + 1):
        attempt = yield call
        status = attempt.status_code if isinstance(attempt, httpx.Response) else None
        if isinstance(attempt, httpx.Response) and status not in TRANSIENT:
            if status == NOT_FOUND and call.method == "DELETE" and number > 1:
                return call.read(attempt)  # the first attempt did it, and its response was lost
            if attempt.is_error:
                raise ProblemError.from_response(attempt)
            try:
                if not attempt.has_redirect_location:
                    return call.read(attempt)
            except ValueError:  # no JSON, or not the expected fields
                pass
            raise ProblemError.from_stranger(attempt)
        may_retry = call.idempotent or isinstance(attempt, NOT_SENT) or status in REFUSED_UNREAD
        pause = Pause(pause_s(number, attempt))
        if number == MAX_ATTEMPTS or not may_retry or time.monotonic() + pause.seconds > ends_at:
            break
        yield pause
    if isinstance(attempt, httpx.Response):
        raise ProblemError.from_response(attempt)
    raise UnreachableError(call.method, call.path, attempt)


def pause_s(number: int, attempt: Attempt = None) -> float:
    """Exponential backoff with jitter; at least what the server's Retry-After says."""
    backoff_s = min(FIRST_PAUSE_S * 2.0 ** (number - 1), MAX_PAUSE_S) * random.uniform(0.5, 1)
    retry_after = str(attempt.headers.get("Retry-After", "")) if isinstance(attempt, httpx.Response) else ""
    return max(backoff_s, min(float(retry_after), MAX_RETRY_AFTER_S)) if retry_after.isdigit() else backoff_s


class HttpOptions(TypedDict):
    base_url: str
    headers: dict[str, str]
    limits: httpx.Limits


def http_options(server: str, key: str | None) -> HttpOptions:
    """Arguments of `httpx.Client` for one server."""
    address = urlsplit(server)
    if address.scheme not in ("http", "https") or not address.hostname:
        raise InputError("server", server, "allowed: http://host:port or https://host")
    headers = {"User-Agent": f"asap-client/{__version__}"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    limits = httpx.Limits(max_connections=MAX_CONNECTIONS)
    return {"base_url": server.rstrip("/"), "headers": headers, "limits": limits}


def path(part: str | int) -> str:
    """Escapes what callers pass, so that an id cannot become another address."""
    return quote(str(part), safe="")


def stated(**params: Param | None) -> dict[str, Param]:
    """Without the ones that are None."""
    return {name: value for name, value in params.items() if value is not None}


def idempotency_header(key: str | None) -> dict[str, str]:
    """Always sends a key: a retry after a lost response must not do the same a second time."""
    return {"Idempotency-Key": key or uuid.uuid4().hex}


@dataclass(frozen=True, kw_only=True)
class Record:
    """Base of the responses that are classes, checked while they are built from JSON."""

    raw: JsonObject = field(default_factory=dict, repr=False, compare=False)
    """The JSON object as it was received, with fields that a newer server may have added."""

    @classmethod
    def from_json(cls: type[R], data: object) -> R:
        """Raises ValueError if a field is missing or has another type."""
        if not isinstance(data, dict):
            raise ValueError(f"{cls.__name__}: must be a JSON object")
        hints: dict[str, Any] = _hints(cls)  # type: ignore[arg-type]  # mypy: a class is no Hashable
        values: dict[str, Any] = {}
        for item in fields(cls):
            place = f"{cls.__name__}.{item.name}"
            if item.name in data:
                values[item.name] = _convert(data[item.name], hints[item.name], place)
            elif type(None) in get_args(hints[item.name]):  # an older server has fewer fields
                values[item.name] = None
            elif item.default is MISSING and item.default_factory is MISSING:
                raise ValueError(f"{place}: missing")
        return cls(**(values | {"raw": data}))


_hints = cache(get_type_hints)


def _convert(value: object, kind: object, place: str) -> object:
    """The value as a field's type has it. A TypedDict stays the object that came."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or (value is None and type(None) in arguments):
        return value
    if origin in (Union, UnionType):
        for option in arguments:
            with suppress(ValueError):
                return _convert(value, option, place)
    elif origin is list and isinstance(value, list):
        return [_convert(item, arguments[0], place) for item in value]
    elif origin is dict and isinstance(value, dict):
        return {key: _convert(item, arguments[1], place) for key, item in value.items()}
    elif origin is Literal and value in arguments:
        return value
    elif isinstance(kind, type) and issubclass(kind, Record):
        return kind.from_json(value)
    elif kind is datetime and isinstance(value, str):
        return datetime.fromisoformat(value.replace("Z", "+00:00"))  # Python 3.10 does not accept Z
    elif kind is float and type(value) is int:
        return float(value)
    elif type(value) is kind or (is_typeddict(kind) and isinstance(value, dict)):
        return value  # not isinstance: true is no number
    raise ValueError(f"{place}: got {value!r:.80}")


def as_record(kind: type[R]) -> Callable[[httpx.Response], R]:
    return lambda response: kind.from_json(response.json())


def as_json(response: httpx.Response) -> Any:  # noqa: ANN401 - any JSON
    return response.json()


def as_items(response: httpx.Response) -> list[Any]:
    return list(response.json()["items"])


def as_text(response: httpx.Response) -> str:
    return response.text


def as_nothing(response: httpx.Response) -> None:
    return None
