"""/login: an API key for a cookie. /logout: the cookie away."""

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from service.api.dependencies import PartsOf, take_turn
from service.auth.cookies import COOKIE
from service.auth.errors import UnauthenticatedError
from service.web.csrf import set_cookie
from service.web.error_pages import PageRoute
from service.web.forms import CheckedForm
from service.web.rendering import page

router = APIRouter(route_class=PageRoute)

Next = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("/login")
def show(request: Request, parts: PartsOf, following: Next = "/") -> Response:
    if parts.authenticator.is_open():
        return RedirectResponse(own_path(following), 303)
    return page(request, "login", None, following=own_path(following), refused=None)


@router.post("/login")
def sign_in(request: Request, form: CheckedForm, parts: PartsOf) -> Response:
    following = own_path(form.get("next", "/"))
    try:
        cookie, expires_s = parts.authenticator.cookie_for(form.get("key", ""))
    except UnauthenticatedError as error:
        take_turn(parts, f"address:{request.client.host if request.client else ''}")
        return page(request, "login", None, 401, following=following, refused=str(error))
    response = RedirectResponse(following, 303)
    set_cookie(request, response, COOKIE, cookie, max(0, expires_s - int(time.time())))
    return response


@router.post("/logout")
def sign_out(form: CheckedForm) -> Response:
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")
    return response


def own_path(given: str) -> str:
    """A path of this server: what leads elsewhere leads to the first page."""
    is_own = given.startswith("/") and not given.startswith(("//", "/\\")) and given.isprintable()
    return given if is_own else "/"
