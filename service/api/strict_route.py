"""Reads requests as strictly as the command line does: no NaN, no repeated key, no deep nesting, no typo.

Refused too is text that no database or file could keep: the character NUL, and halves of surrogate pairs.
"""

import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from fastapi import Request, Response
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from service.api.problems import ApiError
from service.cli.strict_json import parse_object
from tools.errors import InputError
from tools.scenario import did_you_mean

SOURCE = "body"
_ARRAY = b"items"
_SUSPECT = re.compile(rb"\\u(?:0000|[dD][89a-fA-F])")
_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
_NO_NUL = "must not hold the character NUL"


class StrictRequest(Request):
    async def json(self) -> Any:  # noqa: ANN401 - as in the base class
        data = await self.body()
        try:
            value = _parse(data)
        except InputError as error:
            raise ApiError("not-json", str(error), field=SOURCE, allowed=error.allowed) from None
        if _SUSPECT.search(data) and any(_UNKEEPABLE.search(text) for text in _texts(value)):
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
