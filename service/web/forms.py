"""Forms: parsing and CSRF check, one-button forms, and the login page."""

import time
from collections.abc import Callable, Mapping
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response

from service.api.deps import AppDep, Id, Submitter, check_rate_limit
from service.api.errors import ApiError
from service.api.state import AppState
from service.auth import COOKIE, Caller
from service.errors import UnauthenticatedError
from service.web.rendering import FIELD, PageRoute, check_csrf, page, set_cookie
from tools.errors import InputError

MEDIA_TYPE = "application/x-www-form-urlencoded"
MAX_FIELDS = 200
MAX_DIGITS = 12

Form = dict[str, str]


async def _checked(request: Request) -> Form:
    form = parse_form(request.headers.get("content-type", ""), await request.body())
    check_csrf(request, form.pop(FIELD, ""))
    return form


CheckedForm = Annotated[Form, Depends(_checked)]


def parse_form(media_type: str, body: bytes) -> Form:
    """The last value of every field, with \\n line endings and stripped."""
    if media_type.partition(";")[0].strip().lower() != MEDIA_TYPE:
        raise ApiError("unsupported-media-type", f"a form is sent as {MEDIA_TYPE}", field="body")
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS
        )
    except ValueError:
        raise ApiError("bad-request", "the form cannot be read", field="body") from None
    form = {name: value.replace("\r\n", "\n").strip() for name, value in pairs}
    if any("\x00" in text for pair in form.items() for text in pair):
        raise ApiError("bad-request", "the form must not contain the character NUL", field="body")
    return form


def text_of(form: Form, name: str) -> str | None:
    """None for a field that was left empty."""
    return form.get(name) or None


def whole_number(field: str, text: str) -> int:
    """Bounded, because Python refuses to parse very long integers."""
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise InputError(field, text, "must be a whole number")
    return int(text)


def labels_of(text: str) -> dict[str, str]:
    """`name=value` and `name`, between commas."""
    labels = {}
    for piece in text.split(","):
        name, _, value = piece.strip().partition("=")
        if name:
            labels[name.strip()] = value.strip()
    return labels


Act = Callable[[AppState, Caller, str], object]


def add_buttons(router: APIRouter, path: str, buttons: Mapping[str, tuple[Act, str]]) -> None:
    """For each name what it does and where it redirects to, under `path`; both may contain `{id}`."""
    for name, (act, place) in buttons.items():
        router.add_api_route(f"{path}/{name}", _button(act, place), methods=["POST"])


def _button(act: Act, place: str) -> Callable[..., Response]:
    def press(id: Id, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
        act(app, caller, id)
        return RedirectResponse(place.format(id=id), 303)

    return press


router = APIRouter(route_class=PageRoute)

Next = Annotated[str, Query(alias="next", max_length=2000)]


@router.get("/login")
def show(request: Request, app: AppDep, following: Next = "/") -> Response:
    if app.authenticator.is_open():
        return RedirectResponse(own_path(following), 303)
    return page(request, "login", None, following=own_path(following), refused=None)


@router.post("/login")
def sign_in(request: Request, form: CheckedForm, app: AppDep) -> Response:
    following = own_path(form.get("next", "/"))
    try:
        cookie, expires_s = app.authenticator.cookie_for(form.get("key", ""))
    except UnauthenticatedError as error:
        check_rate_limit(app, f"address:{request.client.host if request.client else ''}")
        return page(request, "login", None, 401, following=following, refused=str(error))
    response = RedirectResponse(following, 303)
    set_cookie(request, response, COOKIE, cookie, max(0, expires_s - int(time.time())))
    return response


@router.post("/logout")
def sign_out(form: CheckedForm) -> Response:
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="lax")
    return response


def own_path(path: str) -> str:
    """The path if it is on this server, else the first page: no open redirects."""
    is_own = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_own else "/"
