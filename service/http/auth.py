"""Who calls: the credentials of a request as a caller with a scope, counted against its rate limit."""

from collections.abc import Awaitable, Callable
from typing import Annotated

from anyio.to_thread import run_sync
from fastapi import Depends, Request

from service.access.auth import Caller, Scope
from service.errors import IssuerError, UnauthenticatedError
from service.http.deps import AppDep
from service.http.limits import check_rate_limit
from service.http.problems import ApiError

CALLER = "asap.caller"
"""Where a request's scope keeps who calls, once that is known."""


async def get_caller(request: Request, app: AppDep) -> Caller:
    """Counted by key, or by address if the caller is unknown: guessing keys is limited too.

    Routes ask before they read the body (service/http/strict.py), so that nobody sends one without a key.
    """
    if CALLER in request.scope:
        known: Caller = request.scope[CALLER]
        return known
    address = f"address:{request.client.host if request.client else ''}"
    authenticator = app.authenticator
    try:
        # A thread is entered only if the database must be asked: each costs a wait while sessions compute.
        if authenticator.is_surely_open():
            caller = authenticator.caller_of(request)
        else:
            caller = await run_sync(authenticator.caller_of, request)
    except UnauthenticatedError as error:
        check_rate_limit(app.rates, address)
        raise ApiError("unauthenticated", str(error), headers={"WWW-Authenticate": "Bearer"}) from None
    except IssuerError:
        check_rate_limit(app.rates, address)
        raise
    request.state.caller = caller.name
    request.state.tenant = caller.tenant
    check_rate_limit(app.rates, address if caller.is_local else caller.id)
    request.scope[CALLER] = caller
    return caller


def caller_with(scope: Scope) -> Callable[[Caller], Awaitable[Caller]]:
    async def check(caller: Annotated[Caller, Depends(get_caller)]) -> Caller:
        caller.check(scope)
        return caller

    return check


Reader = Annotated[Caller, Depends(caller_with("read"))]
Submitter = Annotated[Caller, Depends(caller_with("submit"))]
Approver = Annotated[Caller, Depends(caller_with("approve"))]
Admin = Annotated[Caller, Depends(caller_with("admin"))]
Operator = Annotated[Caller, Depends(caller_with("operator"))]
