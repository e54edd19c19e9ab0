"""Every error as a problem document (RFC 9457): its type, the field at fault and what is allowed there.

Not here: how an error becomes an answer of FastAPI (problem_handlers.py).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from service.auth.errors import ForbiddenError, IssuerError, UnauthenticatedError
from service.errors import CancelledError, ConflictError, NotFoundError
from tools.errors import AsapError, InfeasibleError, InputError
from tools.kb import KnowledgeError

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:asap:problem:"
MOST_CHARACTERS = 2000


class Kind(NamedTuple):
    status: int
    title: str


KINDS = {
    "not-json": Kind(400, "The body is not JSON that could be meant"),
    "bad-request": Kind(400, "The request is not understood"),
    "unauthenticated": Kind(401, "A valid API key or token is needed"),
    "forbidden": Kind(403, "This key may not do that"),
    "not-found": Kind(404, "There is no such thing"),
    "method-not-allowed": Kind(405, "This address does not take that method"),
    "not-acceptable": Kind(406, "The answer is not to be had in that form"),
    "timeout": Kind(408, "The request came too slowly"),
    "conflict": Kind(409, "The present state does not allow this"),
    "too-large": Kind(413, "The request is too large"),
    "unsupported-media-type": Kind(415, "The body must be JSON"),
    "wrong-host": Kind(421, "This server does not answer for that host"),
    "wrong-input": Kind(422, "A field has a value that is not allowed"),
    "nothing-feasible": Kind(422, "Nothing satisfies the request"),
    "too-many-requests": Kind(429, "Too many requests"),
    "internal": Kind(500, "The server failed"),
    "unavailable": Kind(503, "A part that this needs does not answer"),
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
    status: int = Field(description="the HTTP status, once more")
    detail: str = Field(description="what is wrong this time, with the numbers and the next step")
    field: str | None = Field(None, description="the field, parameter or header at fault")
    given: str | None = Field(None, description="what stood there, shortened")
    allowed: str | None = Field(None, description="what may stand there")
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
        detail=detail[:MOST_CHARACTERS],
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
    }
    return next((kind for cls, kind in kinds.items() if isinstance(error, cls)), "internal")
