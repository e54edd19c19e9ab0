"""The calls of the API as data, and the rules by which one is sent again. No input or output here.

`Client` and `AsyncClient` perform what the generators yield, so that every rule is written once.
"""

import math
import random
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx

from service.client_errors import ProblemError, UnreachableError

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
