"""Turns what is raised into a problem document. A traceback goes to the log only."""

import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from fastapi.routing import iter_route_contexts
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError, TimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from service.api.problems import KINDS, MEDIA_TYPE, ApiError, Problem, problem, problem_of
from service.logs import Redactor, request_id
from tools.errors import AsapError

log = logging.getLogger("asap.api")
UNEXPECTED = "an error that was not expected; the server's log has it under this request's id"
AWAY = (OperationalError, InterfaceError, TimeoutError)
"""Of SQLAlchemy: no connection, a connection that broke, none free in time."""
_BY_STATUS = {kind.status: name for name, kind in reversed(KINDS.items())}
_SHAPES = {"model_attributes_type": "must be a JSON object", "list_type": "must be a JSON array"}
"""In words of JSON what pydantic says of Python's types."""
NO_ADDRESS = "there is nothing at this address; /openapi.json lists all that there are"
_SOURCES = ("body", "query", "path", "header", "cookie")


def add_problem_handlers(app: FastAPI, redactor: Redactor) -> None:
    """Errors that no handler here knows reach the outermost middleware, which logs and answers them."""

    async def handle(request: Request, error: Exception) -> Response:
        found, headers = _problem_and_headers(error)
        if found.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"Allow": ", ".join(_methods_here(request))}
        return answer(found, headers, redactor)

    for kind in (AsapError, HTTPException, RequestValidationError, ResponseValidationError, SQLAlchemyError):
        app.add_exception_handler(kind, handle)


def answer(found: Problem, headers: Mapping[str, str], redactor: Redactor) -> JSONResponse:
    content = found.model_dump(exclude_none=True) | {"request_id": request_id.get()}
    cleaned = {
        name: redactor.clean(value) if isinstance(value, str) else value for name, value in content.items()
    }
    return JSONResponse(cleaned, found.status, dict(headers), MEDIA_TYPE)


def _methods_here(request: Request) -> list[str]:
    """Of all routes of this address; each route by itself knows only its own."""
    routes = iter_route_contexts(request.app.routes)
    here = (route for route in routes if route.path_regex.match(request.scope["path"]))
    return sorted({method for route in here for method in route.methods or ()})


def unexpected() -> Problem:
    return problem("internal", UNEXPECTED)


def _problem_and_headers(error: Exception) -> tuple[Problem, Mapping[str, str]]:
    # FastAPI wraps what is raised while it reads the body; the cause says what it was.
    if isinstance(error, HTTPException) and isinstance(error.__cause__, AsapError):
        error = error.__cause__
    if isinstance(error, AsapError):
        found = problem_of(error)
        if found.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("request failed", exc_info=error)
        return found, error.headers if isinstance(error, ApiError) else {}
    if isinstance(error, RequestValidationError):
        return _wrong_input(error), {}
    if isinstance(error, HTTPException):
        kind = _BY_STATUS.get(error.status_code, "bad-request")
        said = NO_ADDRESS if error.detail == HTTPStatus.NOT_FOUND.phrase else str(error.detail)
        return problem(kind, said), error.headers or {}
    if isinstance(error, AWAY):
        log.error("the database is away", exc_info=error)
        return problem("unavailable", "the database does not answer; try again"), {"Retry-After": "1"}
    log.error("request failed", exc_info=error)
    return unexpected(), {}


def _wrong_input(error: RequestValidationError) -> Problem:
    """The first thing that is wrong, by the name that the caller gave it."""
    first = error.errors()[0]
    source, *path = first["loc"]
    field = ".".join(map(str, path)) if source in _SOURCES else ".".join(map(str, first["loc"]))
    if source == "body" and not field:
        return _wrong_body(first["type"], first["input"], first["msg"])
    missing = first["type"] == "missing"
    given = "nothing" if missing else repr(first["input"])[:80]
    allowed = "is required" if missing else str(first["msg"])
    detail = f"{field}: got {given}; {allowed}"
    return problem("wrong-input", detail, field=field, given=given, allowed=allowed)


def _wrong_body(kind: str, given: object, message: str) -> Problem:
    if kind == "missing":
        return problem("bad-request", "the body is missing; give JSON", field="body")
    if isinstance(given, bytes):  # what is not declared as JSON is not parsed
        allowed = "must be JSON, sent as Content-Type: application/json"
        return problem("unsupported-media-type", f"the body {allowed}", field="body", allowed=allowed)
    allowed = _SHAPES.get(kind, message)
    return problem("wrong-input", f"body: {allowed}", field="body", allowed=allowed)
