"""Every error that the client raises on purpose, as one tree.

AsapError
├── InputError           what the caller passed is wrong; names the field, the value and what is allowed
├── InfeasibleError      the input is valid, but nothing satisfies it
├── CaptureError         a profile could not be taken or read
├── UnreachableError     no server answered, after all retries
├── WaitError            a session had not ended within the timeout
└── ProblemError         the server refused: its problem document (RFC 9457)
    ├── WrongInputError        also an InputError
    └── NothingFeasibleError   also an InfeasibleError
"""

from typing import TypedDict, cast

import httpx

MAX_FIELD_CHARACTERS, MAX_VALUE_CHARACTERS = 200, 80


class ProblemDocument(TypedDict, total=False):
    """A problem document (RFC 9457)."""

    type: str
    title: str
    detail: str
    field: str
    given: object
    allowed: str
    request_id: str


class AsapError(Exception):
    """Base of all errors whose message is meant for the user."""


class InputError(AsapError):
    """The caller's mistake, in one line."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        self.field, self.given, self.allowed = field, given, allowed
        # Callers make up names of fields: control characters are not printed, endless names are cut.
        name = "".join(c if c.isprintable() else "?" for c in _cut(field, MAX_FIELD_CHARACTERS))
        super().__init__(f"{name}: got {_cut(repr(given), MAX_VALUE_CHARACTERS)}; {allowed}")


class InfeasibleError(AsapError):
    """Nothing satisfies the request; the message says what would."""


class CaptureError(AsapError):
    """A profile could not be taken or read."""


class UnreachableError(AsapError):
    """No server answered, after all retries."""

    def __init__(self, method: str, path: str, cause: httpx.TransportError | None) -> None:
        where = cause.request.url if cause else path
        reason = f"{type(cause).__name__}: {cause}" if cause else "no answer"
        super().__init__(f"{method} {where}: cannot be reached ({reason}); is 'asap serve' running there?")


class WaitError(AsapError):
    """The message says which state the session is in."""


class ProblemError(AsapError):
    """A problem document (RFC 9457) as an error."""

    def __init__(self, status: int, problem: ProblemDocument) -> None:
        self.status, self.problem = status, problem
        self.kind = str(problem.get("type")).rpartition(":")[2]
        self.field: str | None = problem.get("field")
        self.request_id = problem.get("request_id")
        detail = problem.get("detail") or problem.get("title") or f"status {status}"
        AsapError.__init__(self, str(detail))  # subclasses have a second base with another signature

    @classmethod
    def from_response(cls, response: httpx.Response) -> "ProblemError":
        """From any response: a proxy in between may answer without a problem document."""
        try:
            body = response.json()
        except ValueError:
            body = None
        is_document = isinstance(body, dict)
        problem = cast(ProblemDocument, body if is_document else {"detail": _status_line(response)})
        error = cls(response.status_code, problem)
        kinds = {"wrong-input": WrongInputError, "nothing-feasible": NothingFeasibleError}
        return kinds[error.kind](error.status, problem) if error.kind in kinds else error

    @classmethod
    def from_stranger(cls, response: httpx.Response) -> "ProblemError":
        """From a response that ASAP would not send: a proxy's login page, another program's port."""
        where = f"{response.request.method} {response.request.url}"
        detail = f"{where}: unexpected response ({_status_line(response)}); is 'asap serve' running there?"
        return cls(response.status_code, {"detail": detail})


class WrongInputError(ProblemError, InputError):
    """The server found the caller's mistake."""

    field: str

    def __init__(self, status: int, problem: ProblemDocument) -> None:
        super().__init__(status, problem)
        self.field = str(problem.get("field", ""))
        self.given, self.allowed = problem.get("given"), str(problem.get("allowed", ""))


class NothingFeasibleError(ProblemError, InfeasibleError):
    """The message says what would be feasible."""


def _status_line(response: httpx.Response) -> str:
    return f"status {response.status_code} {response.reason_phrase}".strip()


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
