"""FastAPI dependencies: application state, caller with a scope, paging, strict JSON bodies, content
negotiation, bounded searches.
"""

import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from threading import BoundedSemaphore, Thread
from typing import Annotated, Any, TypeVar

from anyio.to_thread import run_sync
from fastapi import Depends, Header, Path, Request, Response
from fastapi import Query as Query_fastapi
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from service.api.errors import ApiError
from service.api.state import AppState
from service.auth import LOCAL, Caller, Scope
from service.errors import IssuerError, UnauthenticatedError
from service.logs import request_id
from service.strict_json import parse_object
from tools.errors import InputError
from tools.scenario import did_you_mean

_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")


JSON, MARKDOWN, HTML = "application/json", "text/markdown", "text/html"
TEXT_SCHEMA = {"schema": {"type": "string"}}
ReportAccept = Annotated[str, Header(description="application/json, text/markdown or text/html")]


def preferred(accept: str, offered: Sequence[str]) -> str:
    """The first of ours among those the caller likes most; an empty header likes everything."""
    ranges = [_parse_range(part) for part in accept.split(",") if part.strip()] or [("*/*", 1.0)]
    quality = {form: _quality(form, ranges) for form in offered}
    best = max(offered, key=lambda form: quality[form])
    if quality[best] <= 0:
        forms = ", ".join(offered)
        raise ApiError("not-acceptable", f"available as {forms}", field="Accept", allowed=forms)
    return best


def _parse_range(part: str) -> tuple[str, float]:
    kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
    weight = next((value[2:] for value in parameters if value.startswith("q=")), "1")
    return kind, float(weight) if _WEIGHT.fullmatch(weight) else 0.0


def _quality(form: str, ranges: list[tuple[str, float]]) -> float:
    """Of the ranges that cover a form the most precise one counts."""
    general = f"{form.split('/')[0]}/*"
    for pattern in (form, general, "*/*"):
        qualities = [quality for kind, quality in ranges if kind == pattern]
        if qualities:
            return max(qualities)
    return 0.0


SOURCE = "body"
_ARRAY = b"items"
_SUSPECT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_NO_NUL = "must not hold the character NUL"


class StrictRequest(Request):
    async def json(self) -> Any:  # noqa: ANN401 - as in the base class
        data = await self.body()
        try:
            value = _parse(data)
        except InputError as error:
            raise ApiError("not-json", str(error), field=SOURCE, allowed=error.allowed) from None
        if _SUSPECT.search(data) and any(_UNSTORABLE.search(text) for text in _texts(value)):
            allowed = "must not hold the character NUL or half of a surrogate pair"
            raise ApiError("not-json", f"the body {allowed}", field=SOURCE, allowed=allowed)
        return value


class StrictRoute(APIRoute):
    """Give it to a router as `route_class`."""

    takes_any_query = False
    """Pages follow links that others made, with what they added."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        params = get_flat_params(self.dependant)
        known = {param.alias for param in params if isinstance(param.field_info, Query)}

        async def strict(request: Request) -> Response:
            _check_address(request)
            if not self.takes_any_query:
                _check_query(request, known)
            return await handler(StrictRequest(request.scope, request.receive))

        return strict


def _parse(data: bytes) -> Any:  # noqa: ANN401 - any JSON
    """The parser takes objects; an array is the one field of such an object for as long as it is parsed."""
    if data.lstrip()[:1] != b"[":
        return parse_object(data, SOURCE)
    return parse_object(b'{"%b":%b}' % (_ARRAY, data), SOURCE)[_ARRAY.decode()]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _check_address(request: Request) -> None:
    if "\x00" in request.scope["path"]:
        raise ApiError("bad-request", f"the path {_NO_NUL}", field="path", allowed=_NO_NUL)
    if b"%00" in request.scope.get("query_string", b""):
        raise ApiError("bad-request", f"the query {_NO_NUL}", field="query", allowed=_NO_NUL)


def _check_query(request: Request, known: set[str]) -> None:
    """A filter that is misspelt would otherwise let everything pass."""
    for name, value in request.query_params.items():
        if name not in known:
            says = did_you_mean(name, known) if known else "this address takes no parameters"
            raise InputError(name, value, f"unknown parameter, {says}")


MAX_ITEMS = 500


def get_app_state(request: Request) -> AppState:
    app: AppState = request.app.state.asap
    return app


async def _app_state(request: Request) -> AppState:
    return get_app_state(request)


async def _caller(request: Request) -> Caller:
    """Counted by key, or by address if the caller is unknown: guessing keys is limited too."""
    app, address = get_app_state(request), f"address:{request.client.host if request.client else ''}"
    known = app.authenticator
    try:
        # A thread is entered only if the database must be asked: each costs a wait while sessions compute.
        caller = (
            known.caller_of(request) if known.is_surely_open() else await run_sync(known.caller_of, request)
        )
    except UnauthenticatedError as error:
        check_rate_limit(app, address)
        raise ApiError("unauthenticated", str(error), headers={"WWW-Authenticate": "Bearer"}) from None
    except IssuerError:
        check_rate_limit(app, address)
        raise
    request.state.caller = caller.name
    request.state.tenant = caller.tenant
    check_rate_limit(app, address if caller is LOCAL else caller.id)
    return caller


def check_rate_limit(app: AppState, caller: str) -> None:
    """Counts a request of this caller; raises if it is one too many."""
    wait_s = app.rates.wait_s(caller)
    if wait_s:
        limit = app.settings.requests_per_minute
        detail = f"more than {limit} requests per minute; retry in {wait_s} s"
        raise ApiError("too-many-requests", detail, headers={"Retry-After": str(wait_s)})


def caller_with(scope: Scope) -> Callable[[Caller], Awaitable[Caller]]:
    async def check(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
        caller.check(scope)
        return caller

    return check


def get_request_id() -> str | None:
    return request_id.get()


AppDep = Annotated[AppState, Depends(_app_state)]
Reader = Annotated[Caller, Depends(caller_with("read"))]
Submitter = Annotated[Caller, Depends(caller_with("submit"))]
Approver = Annotated[Caller, Depends(caller_with("approve"))]
Admin = Annotated[Caller, Depends(caller_with("admin"))]
Operator = Annotated[Caller, Depends(caller_with("operator"))]

Id = Annotated[str, Path(description="32 hexadecimal digits", max_length=64)]
Cursor = Annotated[str | None, Query_fastapi(description="`next_cursor` of the page before", max_length=64)]
Limit = Annotated[int, Query_fastapi(ge=1, le=MAX_ITEMS, description="how many at most")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="your own id of this request: sent again, it returns the same session",
    ),
]


T = TypeVar("T")
Progress = Callable[[float], None]
RETRY_AFTER_S = 5
INSTEAD = "submit a session, which takes its time"


def run_bounded_search(app: AppState, work: Callable[[Progress], T]) -> T:
    return run_in_turn(app.searches, app.settings.request_s, work)


def run_in_turn(turns: BoundedSemaphore, most_s: float, work: Callable[[Progress], T]) -> T:
    """The result of `work`, which is handed a progress function that stops it when its time is over.

    What does not report progress cannot be stopped: then the answer goes out in time all the same, and the
    work keeps its turn until it ends, so that no more than a few ever run.
    """
    if not turns.acquire(timeout=RETRY_AFTER_S):
        busy = f"as many as may run at a time do; ask again in {RETRY_AFTER_S} s, or {INSTEAD}"
        raise ApiError("unavailable", busy, headers={"Retry-After": str(RETRY_AFTER_S)})
    ends_at = time.monotonic() + most_s

    def stop_in_time(done: float) -> None:
        if time.monotonic() > ends_at:
            raise TimeoutError

    future: Future[T] = Future()
    Thread(target=_run, args=(turns, future, work, stop_in_time), name="search", daemon=True).start()
    try:
        return future.result(most_s)
    except TimeoutError:
        raise ApiError("out-of-time", f"not done after {most_s:g} s; {INSTEAD}") from None


def _run(
    turns: BoundedSemaphore, future: Future[T], work: Callable[[Progress], T], progress: Progress
) -> None:
    try:
        future.set_result(work(progress))
    except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
        future.set_exception(error)
    finally:
        turns.release()
