"""Every error as a problem document (RFC 9457), and the handlers that turn exceptions into one."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError, TimeoutError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from service.errors import (
    CancelledError,
    ConflictError,
    ForbiddenError,
    FullDiskError,
    IssuerError,
    NotFoundError,
    QuotaError,
    UnauthenticatedError,
)
from service.logs import Redactor, request_id
from tools.errors import AsapError, InfeasibleError, InputError
from tools.kb import KnowledgeError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:asap:problem:"
MAX_CHARACTERS = 2000


class Kind(NamedTuple):
    status: int
    title: str


KINDS = {
    "not-json": Kind(400, "The body is not valid JSON"),
    "bad-request": Kind(400, "The request is not understood"),
    "unauthenticated": Kind(401, "A valid API key or token is needed"),
    "forbidden": Kind(403, "This key may not do that"),
    "not-found": Kind(404, "Not found"),
    "method-not-allowed": Kind(405, "This address does not take that method"),
    "not-acceptable": Kind(406, "The response is not available in that format"),
    "timeout": Kind(408, "The request arrived too slowly"),
    "conflict": Kind(409, "The current state does not allow this"),
    "too-large": Kind(413, "The request is too large"),
    "unsupported-media-type": Kind(415, "The body must be JSON"),
    "wrong-host": Kind(421, "This server does not answer for that host"),
    "wrong-input": Kind(422, "A field has a value that is not allowed"),
    "nothing-feasible": Kind(422, "Nothing satisfies the request"),
    "too-many-requests": Kind(429, "Too many requests"),
    "quota": Kind(429, "This key or tenant has reached its limit"),
    "internal": Kind(500, "The server failed"),
    "full": Kind(507, "The server has no space left"),
    "unavailable": Kind(503, "A part that is needed does not answer"),
    "out-of-time": Kind(504, "The answer took too long"),
}


class Problem(BaseModel):
    """An error, as RFC 9457 describes it, with the field at fault."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": f"{TYPE_PREFIX}wrong-input",
                    "title": KINDS["wrong-input"].title,
                    "status": 422,
                    "detail": "plan.tp: got 3; must divide model.num_attention_heads (64)",
                    "field": "plan.tp",
                    "given": "3",
                    "allowed": "must divide model.num_attention_heads (64)",
                    "request_id": "3f0c4a51e1b64f0e9a4bb1a4a3a5d0c2",
                }
            ]
        }
    )

    type: str = Field(description="names the kind of error; the same kind always has the same type")
    title: str = Field(description="the kind in words")
    status: int = Field(description="the HTTP status, repeated")
    detail: str = Field(description="what is wrong this time, with the numbers and the next step")
    field: str | None = Field(None, description="the field, parameter or header at fault")
    given: str | None = Field(None, description="what was sent, shortened")
    allowed: str | None = Field(None, description="what is allowed")
    request_id: str | None = Field(None, description="the same as in X-Request-Id and in the server's logs")


class ApiError(AsapError):
    """A problem of the transport: no tool could have found it."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        field: str | None = None,
        allowed: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.kind, self.field, self.allowed = kind, field, allowed
        self.headers = dict(headers or {})
        super().__init__(detail)


def problem(kind: str, detail: str, **members: Any) -> Problem:  # noqa: ANN401 - the fields of Problem
    known = KINDS[kind]
    return Problem(
        type=TYPE_PREFIX + kind,
        title=known.title,
        status=known.status,
        detail=detail[:MAX_CHARACTERS],
        **members,
    )


def problem_of(error: AsapError) -> Problem:
    """Our own errors all have a message for the caller."""
    if isinstance(error, ApiError):
        return problem(error.kind, str(error), field=error.field, allowed=error.allowed)
    if isinstance(error, InputError):
        given = None if error.given is None else repr(error.given)[:80]
        return problem("wrong-input", str(error), field=error.field, given=given, allowed=error.allowed)
    if isinstance(error, ConflictError):
        return problem("conflict", str(error), field=error.field)
    return problem(_kind_of(error), str(error))


def _kind_of(error: AsapError) -> str:
    kinds = {
        NotFoundError: "not-found",
        CancelledError: "conflict",
        InfeasibleError: "nothing-feasible",
        KnowledgeError: "unavailable",
        IssuerError: "unavailable",
        UnauthenticatedError: "unauthenticated",
        ForbiddenError: "forbidden",
        QuotaError: "quota",
        FullDiskError: "full",
    }
    return next((kind for cls, kind in kinds.items() if isinstance(error, cls)), "internal")


log = logging.getLogger("asap.api")
UNEXPECTED = "an unexpected error; the server's log has it under this request's id"
CONNECTION_ERRORS = (OperationalError, InterfaceError, TimeoutError)
"""Of SQLAlchemy: no connection, a connection that broke, none free in time."""
_BY_STATUS = {kind.status: name for name, kind in reversed(KINDS.items())}
_SHAPES = {"model_attributes_type": "must be a JSON object", "list_type": "must be a JSON array"}
"""What pydantic says about Python's types, in JSON's terms."""
NO_ADDRESS = "there is nothing at this address; /openapi.json lists all addresses"
_SOURCES = ("body", "query", "path", "header", "cookie")


def add_problem_handlers(app: FastAPI, redactor: Redactor) -> None:
    """Errors that no handler here knows reach the outermost middleware, which logs and answers them."""

    async def handle(request: Request, error: Exception) -> Response:
        described, headers = _problem_and_headers(error)
        if described.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"Allow": ", ".join(_methods_here(request))}
        return answer(described, headers, redactor)

    for kind in (AsapError, HTTPException, RequestValidationError, ResponseValidationError, SQLAlchemyError):
        app.add_exception_handler(kind, handle)


def answer(problem: Problem, headers: Mapping[str, str], redactor: Redactor) -> JSONResponse:
    content = problem.model_dump(exclude_none=True) | {"request_id": request_id.get()}
    cleaned = {
        name: redactor.clean(value) if isinstance(value, str) else value for name, value in content.items()
    }
    return JSONResponse(cleaned, problem.status, dict(headers), MEDIA_TYPE)


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
        described = problem_of(error)
        if described.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("request failed", exc_info=error)
        return described, error.headers if isinstance(error, ApiError) else {}
    if isinstance(error, RequestValidationError):
        return _wrong_input(error), {}
    if isinstance(error, HTTPException):
        kind = _BY_STATUS.get(error.status_code, "bad-request")
        detail = NO_ADDRESS if error.detail == HTTPStatus.NOT_FOUND.phrase else str(error.detail)
        return problem(kind, detail), error.headers or {}
    if isinstance(error, CONNECTION_ERRORS):
        log.error("database unavailable", exc_info=error)
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
        return problem("bad-request", "the body is missing; send JSON", field="body")
    if isinstance(given, bytes):  # what is not declared as JSON is not parsed
        allowed = "must be JSON, sent as Content-Type: application/json"
        return problem("unsupported-media-type", f"the body {allowed}", field="body", allowed=allowed)
    allowed = _SHAPES.get(kind, message)
    return problem("wrong-input", f"body: {allowed}", field="body", allowed=allowed)
