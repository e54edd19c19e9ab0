"""Forms: parsing and CSRF check, one-button forms, and the login page."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import RedirectResponse, Response

from service.access.auth import Caller
from service.access.credentials import COOKIE
from service.errors import UnauthenticatedError
from service.http.auth import Submitter
from service.http.deps import AppDep, Id
from service.http.limits import check_rate_limit
from service.http.problems import ApiError
from service.http.state import AppState
from service.web.csrf import FIELD, check_csrf, set_cookie
from service.web.errors import PageRoute
from service.web.rendering import page
from tools.errors import InputError

MEDIA_TYPE = "application/x-www-form-urlencoded"
MAX_FIELDS = 200
MAX_DIGITS = 12
FIELD_OF_PATH = {
    "text": "config",
    "model": "model_config",
    "format": "kind",
    "cluster.device": "devices",
    "cluster.num_devices": "devices",
}
"""Fields of forms whose name is not the path of what they hold."""
FIELD_OF_PART = {"cluster": "devices", "training": "training.seq_len", "plan": "plan.tp"}

FormFields = dict[str, str]
Act = Callable[[AppState, Caller, str], object]

router = APIRouter(route_class=PageRoute)


async def read_checked(request: Request) -> FormFields:
    form = parse_form(request.headers.get("content-type", ""), await request.body())
    check_csrf(request, form.pop(FIELD, ""))
    return form


CheckedForm = Annotated[FormFields, Depends(read_checked)]


def parse_form(media_type: str, body: bytes) -> FormFields:
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


def text_of(form: FormFields, name: str) -> str | None:
    """None for a field that was left empty."""
    return form.get(name) or None


def whole_number(field: str, text: str) -> int:
    """Bounded, because Python refuses to parse very long integers."""
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise InputError(field, text, "must be a whole number")
    return int(text)


def plan_value(path: str, text: str, example: object) -> bool | int | str:
    """A field of a plan with the type that its other value has; text stands for itself."""
    if isinstance(example, bool):
        return text == "true"
    return whole_number(path, text) if isinstance(example, int) else text


def form_field(path: str, fields: Collection[str]) -> str:
    """The field of a form that holds what an error is about."""
    if path in fields:
        return path
    if path in FIELD_OF_PATH:
        return FIELD_OF_PATH[path]
    return FIELD_OF_PART.get(path.partition(".")[0], "config")


def labels_of(text: str) -> dict[str, str]:
    """`name=value` and `name`, between commas."""
    pairs = [piece.strip().partition("=") for piece in text.split(",")]
    return {name.strip(): value.strip() for name, _, value in pairs if name}


def labels_text(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" if value else name for name, value in labels.items())


def add_buttons(router: APIRouter, path: str, buttons: Mapping[str, tuple[Act, str]]) -> None:
    """For each name what it does and where it redirects to, under `path`; both may contain `{id}`."""

    def button(act: Act, place: str) -> Callable[..., Response]:
        def press(id: Id, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
            act(app, caller, id)
            return RedirectResponse(place.format(id=id), 303)

        return press

    for name, (act, place) in buttons.items():
        router.add_api_route(f"{path}/{name}", button(act, place), methods=["POST"])


@router.get("/login")
def show(
    request: Request, app: AppDep, following: Annotated[str, Query(alias="next", max_length=2000)] = "/"
) -> Response:
    if app.authenticator.is_open():
        return RedirectResponse(own_path(following), 303)
    return page(request, "login", None, following=own_path(following), refused=None)


@router.post("/login")
def sign_in(request: Request, form: CheckedForm, app: AppDep) -> Response:
    following = own_path(form.get("next", "/"))
    try:
        cookie, expires_s = app.authenticator.cookie_for(form.get("key", ""))
    except UnauthenticatedError as error:
        check_rate_limit(app.rates, f"address:{request.client.host if request.client else ''}")
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
