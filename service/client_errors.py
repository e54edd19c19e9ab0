"""What can go wrong for a client of the API.

AsapError
├── ProblemError       the server said no; the message is its own
├── UnreachableError   nobody answered
└── WaitError          the time to wait is over, and the session is not
"""

from typing import Any

import httpx

from tools.errors import AsapError


class ProblemError(AsapError):
    """A problem document (RFC 9457) as an error."""

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status, self.problem = status, problem
        self.kind = str(problem.get("type", "")).rpartition(":")[2]
        self.field: str | None = problem.get("field")
        self.request_id: str | None = problem.get("request_id")
        detail = problem.get("detail") or problem.get("title") or f"status {status}"
        super().__init__(str(detail))

    @classmethod
    def of(cls, response: httpx.Response) -> "ProblemError":
        """Of any answer: what stands between us and the server does not speak our language."""
        try:
            found = response.json()
        except ValueError:
            found = None
        return cls(response.status_code, found if isinstance(found, dict) else {"detail": _brief(response)})


class UnreachableError(AsapError):
    """Nobody answered, however often the call was sent."""

    def __init__(self, method: str, path: str, cause: object) -> None:
        reason = f"{type(cause).__name__}: {cause}" if cause else "no answer"
        super().__init__(f"{method} {path}: the server cannot be reached ({reason})")


class WaitError(AsapError):
    """The message says the state it was in."""


def _brief(response: httpx.Response) -> str:
    return f"status {response.status_code} {response.reason_phrase}".strip()
