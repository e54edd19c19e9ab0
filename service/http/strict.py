"""Routes that take strict JSON and only parameters they name, and answer in the format of Accept."""

import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import nullcontext
from inspect import iscoroutinefunction
from typing import Annotated

from fastapi import Header, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from pydantic import JsonValue

from service.http.auth import get_caller
from service.http.computing import ASKING, CHANGING, COMPUTING, KEPT_AS_JSON, WAITING
from service.http.deps import get_app_state
from service.http.problems import ApiError
from service.strict_json import parse_object
from tools.errors import InputError
from tools.scenario import did_you_mean

JSON, MARKDOWN, HTML = REPORTS = "application/json", "text/markdown", "text/html"
TEXT_SCHEMA = {"schema": {"type": "string"}}
ReportAccept = Annotated[str, Header(description="application/json, text/markdown or text/html")]
SOURCE = "body"
LONG_BYTES = 64 << 10
"""A longer body takes milliseconds to parse, in which nobody is answered: its request computes."""
TOO_LONG = f"at most {LONG_BYTES:,} bytes here"
_WEIGHT = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
_ARRAY = b"items"
_SUSPECT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_NO_NUL = "must not hold the character NUL"


class StrictRoute(APIRoute):
    """Give it to a router as `route_class`."""

    takes_any_query = False
    """Pages follow links that others made, with what they added."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[None, None, Response]]:
        handler = super().get_route_handler()
        params = get_flat_params(self.dependant)
        names = {param.alias for param in params if isinstance(param.field_info, Query)}
        needs_caller = _depends_on(self.dependant, get_caller)
        endpoints = {f"{method} {self.path_format}" for method in self.methods or ()}
        computes, waits, asks = (bool(endpoints & named) for named in (COMPUTING, WAITING, ASKING))
        is_kept, stays = bool(endpoints & KEPT_AS_JSON), waits or bool(endpoints & CHANGING)
        streams = iscoroutinefunction(self.endpoint) and not waits

        async def strict(request: Request) -> Response:
            app = await get_app_state(request)
            caller = await get_caller(request, app) if needs_caller else None
            if "\x00" in request.scope["path"]:
                raise ApiError("bad-request", f"the path {_NO_NUL}", field="path", allowed=_NO_NUL)
            if b"%00" in request.scope.get("query_string", b""):
                raise ApiError("bad-request", f"the query {_NO_NUL}", field="query", allowed=_NO_NUL)
            if not self.takes_any_query:
                # A filter that is misspelt would otherwise let everything pass.
                for name, value in request.query_params.items():
                    if name not in names:
                        hint = did_you_mean(name, names) if names else "this address takes no parameters"
                        raise InputError(name, value, f"unknown parameter, {hint}")
            asked = StrictRequest(request.scope, request.receive)
            if caller is None or streams:
                return await handler(asked)
            has_to_compute = computes or (asks and not app.asks_model(caller.tenant))
            if is_kept and preferred(request.headers.get("accept", JSON), REPORTS) == JSON:
                has_to_compute = False
            if app.computing and has_to_compute:
                return await app.computing.answer(asked, caller)
            if app.computing and asks:  # it pays for what it computes before and after the model
                app.computing.check(caller)
            stated = request.headers.get("content-length", "")
            is_long = stated.isdecimal() and int(stated) > LONG_BYTES
            if app.computing and (is_long or len(await asked.body()) > LONG_BYTES):
                if stays:
                    raise ApiError("too-large", TOO_LONG, field=SOURCE, allowed=TOO_LONG)
                return await app.computing.answer(asked, caller)
            async with nullcontext() if waits else app.turns[caller.tenant]:
                return await handler(asked)

        return strict


def _depends_on(dependant: Dependant, call: Callable[..., object]) -> bool:
    return dependant.call is call or any(_depends_on(part, call) for part in dependant.dependencies)


class StrictRequest(Request):
    async def json(self) -> JsonValue:
        data = await self.body()
        is_array = data.lstrip()[:1] == b"["
        try:
            # The parser takes objects; an array is the one field of such an object while it is parsed.
            parsed = parse_object(b'{"%b":%b}' % (_ARRAY, data) if is_array else data, SOURCE)
        except InputError as error:
            raise ApiError("not-json", str(error), field=SOURCE, allowed=error.rule) from None
        value = parsed[_ARRAY.decode()] if is_array else parsed
        if _SUSPECT.search(data) and any(_UNSTORABLE.search(text) for text in _texts(value)):
            allowed = "must not hold the character NUL or half of a surrogate pair"
            raise ApiError("not-json", f"the body {allowed}", field=SOURCE, allowed=allowed)
        return value


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


def preferred(accept: str, offered: Sequence[str]) -> str:
    """The first of ours among those the caller likes most; an empty header likes everything."""
    ranges: dict[str, float] = {}
    for part in accept.split(","):
        if part.strip():
            kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
            stated = next((value[2:] for value in parameters if value.startswith("q=")), "1")
            weight = float(stated) if _WEIGHT.fullmatch(stated) else 0.0
            ranges[kind] = max(weight, ranges.get(kind, 0.0))

    def quality(form: str) -> float:
        """The most precise range that covers a form counts."""
        covering = (form, f"{form.split('/')[0]}/*", "*/*")
        return next((ranges[kind] for kind in covering if kind in ranges), 0.0 if ranges else 1.0)

    best = max(offered, key=quality)
    if quality(best) <= 0:
        forms = ", ".join(offered)
        raise ApiError("not-acceptable", f"available as {forms}", field="Accept", allowed=forms)
    return best
