"""Forms as browsers send them, checked for where they come from and for what no store could keep."""

from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from service.api.problems import ApiError
from service.web.csrf import FIELD, check_csrf
from tools.errors import InputError

MEDIA_TYPE = "application/x-www-form-urlencoded"
MOST_FIELDS = 200
MOST_DIGITS = 12

Form = dict[str, str]


async def _checked(request: Request) -> Form:
    form = parse_form(request.headers.get("content-type", ""), await request.body())
    check_csrf(request, form.pop(FIELD, ""))
    return form


CheckedForm = Annotated[Form, Depends(_checked)]


def parse_form(media_type: str, body: bytes) -> Form:
    """The last value of every field, with plain line ends and without spaces around it."""
    if media_type.partition(";")[0].strip().lower() != MEDIA_TYPE:
        raise ApiError("unsupported-media-type", f"a form is sent as {MEDIA_TYPE}", field="body")
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS
        )
    except ValueError:
        raise ApiError("bad-request", "the form cannot be read", field="body") from None
    form = {name: value.replace("\r\n", "\n").strip() for name, value in pairs}
    if any("\x00" in text for pair in form.items() for text in pair):
        raise ApiError("bad-request", "the form must not hold the character NUL", field="body")
    return form


def text_of(form: Form, name: str) -> str | None:
    """None for a field that was left empty."""
    return form.get(name) or None


def whole_number(field: str, text: str) -> int:
    """Never of so many digits that Python refuses to read them."""
    if not text.isdecimal() or len(text) > MOST_DIGITS:
        raise InputError(field, text, "must be a whole number")
    return int(text)
