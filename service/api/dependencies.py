"""What endpoints ask for, as annotated aliases: the parts, the caller with a scope, a page of a list."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import Depends, Header, Path, Query, Request

from service.api.parts import Parts
from service.api.problems import ApiError
from service.auth.caller import LOCAL, Caller, Scope
from service.auth.errors import IssuerError, UnauthenticatedError
from service.logs import request_id

MOST_ITEMS = 500


def get_parts(request: Request) -> Parts:
    parts: Parts = request.app.state.parts
    return parts


async def _get_parts(request: Request) -> Parts:
    return get_parts(request)


async def _caller(request: Request) -> Caller:
    """Counted by key, or by address where nobody is known: guessing keys is limited too."""
    parts, address = get_parts(request), f"address:{request.client.host if request.client else ''}"
    known = parts.authenticator
    try:
        # A thread is entered only where the database must be asked: each costs a wait while sessions compute.
        caller = (
            known.caller_of(request) if known.is_surely_open() else await run_sync(known.caller_of, request)
        )
    except UnauthenticatedError as error:
        take_turn(parts, address)
        raise ApiError("unauthenticated", str(error), headers={"WWW-Authenticate": "Bearer"}) from None
    except IssuerError:
        take_turn(parts, address)
        raise
    request.state.caller = caller.name
    take_turn(parts, address if caller is LOCAL else caller.id)
    return caller


def take_turn(parts: Parts, caller: str) -> None:
    """Counts a request of this caller; raises where it is one too many."""
    wait_s = parts.rates.wait_s(caller)
    if wait_s:
        most = parts.settings.requests_per_minute
        detail = f"more than {most} requests a minute; again in {wait_s} s"
        raise ApiError("too-many-requests", detail, headers={"Retry-After": str(wait_s)})


def caller_with(scope: Scope) -> Callable[[Caller], Awaitable[Caller]]:
    async def check(caller: Annotated[Caller, Depends(_caller)]) -> Caller:
        caller.check(scope)
        return caller

    return check


def get_request_id() -> str | None:
    return request_id.get()


PartsOf = Annotated[Parts, Depends(_get_parts)]
Reader = Annotated[Caller, Depends(caller_with("read"))]
Submitter = Annotated[Caller, Depends(caller_with("submit"))]
Approver = Annotated[Caller, Depends(caller_with("approve"))]
Admin = Annotated[Caller, Depends(caller_with("admin"))]

Id = Annotated[str, Path(description="32 hexadecimal digits", max_length=64)]
Cursor = Annotated[str | None, Query(description="`next_cursor` of the page before", max_length=64)]
Limit = Annotated[int, Query(ge=1, le=MOST_ITEMS, description="how many at most")]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="your own word for this request: sent again, it gives the same session, never a second",
    ),
]
