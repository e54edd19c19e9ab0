"""Every error as a problem document (RFC 9457), and the handlers that turn exceptions into one."""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError, ResponseValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import ErrorDetails
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from service.db.outages import CONNECTION_ERRORS
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
from tools.scenario.fields import input_error

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:asap:problem:"
MAX_CHARACTERS = 2000
UNEXPECTED = "an unexpected error; the server's log has it under this request's id"
NO_ADDRESS = "there is nothing at this address; /openapi.json lists all addresses"
KINDS: dict[str, tuple[int, str]] = {
    "not-json": (400, "The body is not valid JSON"),
    "bad-request": (400, "The request is not understood"),
    "unauthenticated": (401, "A valid API key or token is needed"),
    "forbidden": (403, "This key may not do that"),
    "not-found": (404, "Not found"),
    "method-not-allowed": (405, "This address does not take that method"),
    "not-acceptable": (406, "The response is not available in that format"),
    "timeout": (408, "The request arrived too slowly"),
    "conflict": (409, "The current state does not allow this"),
    "too-large": (413, "The request is too large"),
    "unsupported-media-type": (415, "The body must be JSON"),
    "wrong-host": (421, "This server does not answer for that host"),
    "wrong-input": (422, "A field has a value that is not allowed"),
    "nothing-feasible": (422, "Nothing satisfies the request"),
    "too-many-requests": (429, "Too many requests"),
    "quota": (429, "This key or tenant has reached its limit"),
    "internal": (500, "The server failed"),
    "full": (507, "The server has no space left"),
    "unavailable": (503, "A part that is needed does not answer"),
    "out-of-time": (504, "The answer took too long"),
}
"""Status and title of each kind of problem."""
KIND_BY_STATUS = {status: name for name, (status, _) in reversed(KINDS.items())}
KIND_BY_ERROR: dict[type[AsapError], str] = {
    NotFoundError: "not-found",
    ConflictError: "conflict",
    CancelledError: "conflict",
    InfeasibleError: "nothing-feasible",
    KnowledgeError: "unavailable",
    IssuerError: "unavailable",
    UnauthenticatedError: "unauthenticated",
    ForbiddenError: "forbidden",
    QuotaError: "quota",
    FullDiskError: "full",
}
log = logging.getLogger("asap.api")


class Problem(BaseModel):
    """An error, as RFC 9457 describes it, with the field at fault."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": f"{TYPE_PREFIX}wrong-input",
                    "title": KINDS["wrong-input"][1],
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


def problem(
    kind: str, detail: str, field: str | None = None, given: str | None = None, allowed: str | None = None
) -> Problem:
    status, title = KINDS[kind]
    return Problem(
        type=TYPE_PREFIX + kind,
        title=title,
        status=status,
        detail=detail[:MAX_CHARACTERS],
        field=field,
        given=given,
        allowed=allowed,
    )


def unexpected() -> Problem:
    return problem("internal", UNEXPECTED)


def problem_of(error: AsapError) -> Problem:
    """Our own errors all have a message for the caller."""
    if isinstance(error, ApiError):
        return problem(error.kind, str(error), error.field, allowed=error.allowed)
    if isinstance(error, InputError):
        given = None if error.given is None else repr(error.given)[:80]
        return problem("wrong-input", str(error), error.path, given, error.rule)
    kind = next((kind for cls, kind in KIND_BY_ERROR.items() if isinstance(error, cls)), "internal")
    return problem(kind, str(error), error.path if isinstance(error, ConflictError) else None)


def answer(problem: Problem, headers: Mapping[str, str], redactor: Redactor) -> JSONResponse:
    content = problem.model_dump(exclude_none=True) | {"request_id": request_id.get()}
    cleaned = {
        name: redactor.clean(value) if isinstance(value, str) else value for name, value in content.items()
    }
    return JSONResponse(cleaned, problem.status, dict(headers), MEDIA_TYPE)


def add_problem_handlers(app: FastAPI, redactor: Redactor) -> None:
    """Errors that no handler here knows reach the outermost middleware, which logs and answers them."""

    async def handle(request: Request, error: Exception) -> Response:
        # FastAPI wraps what is raised while it reads the body; the cause says what it was.
        if isinstance(error, HTTPException) and isinstance(error.__cause__, AsapError):
            error = error.__cause__
        headers: Mapping[str, str] = {}
        if isinstance(error, AsapError):
            described, headers = problem_of(error), error.headers if isinstance(error, ApiError) else {}
        elif isinstance(error, RequestValidationError):
            described = _wrong_input(error, request)
        elif isinstance(error, HTTPException):
            kind = KIND_BY_STATUS.get(error.status_code, "bad-request")
            detail = NO_ADDRESS if error.status_code == HTTPStatus.NOT_FOUND else str(error.detail)
            described, headers = problem(kind, detail), error.headers or {}
        elif isinstance(error, CONNECTION_ERRORS):
            described = problem("unavailable", "the database does not answer; try again")
            headers = {"Retry-After": "1"}
        else:
            described = unexpected()
        if described.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("request failed: %s", described.title, exc_info=error)
        if described.status == HTTPStatus.METHOD_NOT_ALLOWED:  # each route by itself knows only its own
            routes = iter_route_contexts(request.app.routes)
            here = (route for route in routes if route.path_regex.match(request.scope["path"]))
            headers = {
                "Allow": ", ".join(sorted({method for route in here for method in route.methods or ()}))
            }
        return answer(described, headers, redactor)

    for kind in (AsapError, HTTPException, RequestValidationError, ResponseValidationError, SQLAlchemyError):
        app.add_exception_handler(kind, handle)


def _wrong_input(error: RequestValidationError, request: Request) -> Problem:
    """The first thing that is wrong, by the name that the caller gave it."""
    first, *_ = error.errors()
    source, *path = first["loc"]
    if source == "body" and not path and first["type"] == "missing":
        return problem("bad-request", "the body is missing; send JSON", "body")
    if isinstance(first["input"], bytes):  # what is not declared as JSON is not parsed
        allowed = "must be JSON, sent as Content-Type: application/json"
        return problem("unsupported-media-type", f"the body {allowed}", "body", allowed=allowed)
    if source != "body":
        return problem_of(input_error([first]).at(".".join(map(str, path))))
    body = request.scope["route"].body_field
    inside = [{**fault, "loc": fault["loc"][1:]} for fault in error.errors() if fault["loc"][0] == source]
    wrong = input_error(cast("list[ErrorDetails]", inside), body and body.field_info.annotation)
    return problem_of(wrong if path else wrong.at("body"))
