"""The errors of a client of the API, as one tree."""

from typing import Any

import httpx

from tools.errors import AsapError, InfeasibleError, InputError


class ProblemError(AsapError):
    """A problem document (RFC 9457) as an error."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status, self.problem = status, problem
        self.kind = _kind(problem)
        self.field: str | None = problem.get("field")
        self.request_id: str | None = problem.get("request_id")
        detail = problem.get("detail") or problem.get("title") or f"status {status}"
        AsapError.__init__(self, str(detail))  # not the next class's: subclasses are of a second kind

    @classmethod
    def of(cls, response: httpx.Response) -> "ProblemError":
        """Of any answer: what stands between us and the server does not speak our language."""
        try:
            found = response.json()
        except ValueError:
            found = None
        problem = found if isinstance(found, dict) else {"detail": _brief(response)}
        kinds = {"wrong-input": WrongInputError, "nothing-feasible": NothingFeasibleError}
        return kinds.get(_kind(problem), ProblemError)(response.status_code, problem)

    @classmethod
    def of_another(cls, response: httpx.Response) -> "ProblemError":
        """Of an answer that a server of ours would not give: a proxy's login page, another's port."""
        where = f"{response.request.method} {response.request.url}"
        detail = f"{where}: {_brief(response)}, and not what was asked for; does 'asap serve' run there?"
        return cls(response.status_code, {"detail": detail})


class WrongInputError(ProblemError, InputError):
    """The caller's mistake, whoever found it."""

    field: str

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        super().__init__(status, problem)
        self.field = str(problem.get("field", ""))
        self.given, self.allowed = problem.get("given"), str(problem.get("allowed", ""))


class NothingFeasibleError(ProblemError, InfeasibleError):
    """The message says what would satisfy it."""


class UnreachableError(AsapError):
    """Nobody answered, however often the call was sent."""

    def __init__(self, method: str, path: str, cause: httpx.TransportError | None) -> None:
        where = cause.request.url if cause else path
        reason = f"{type(cause).__name__}: {cause}" if cause else "no answer"
        super().__init__(f"{method} {where}: cannot be reached ({reason}); does 'asap serve' run there?")


class WaitError(AsapError):
    """The message says the state it was in."""


def _kind(problem: dict[str, Any]) -> str:
    return str(problem.get("type", "")).rpartition(":")[2]


def _brief(response: httpx.Response) -> str:
    return f"status {response.status_code} {response.reason_phrase}".strip()
