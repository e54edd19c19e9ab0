"""Errors of the service: missing objects, conflicts, fencing, cancellation, and failed authentication."""

from tools.errors import AsapError


class NotFoundError(AsapError):
    """Says the same whether a thing is absent or another tenant's."""

    def __init__(self, kind: str, id: str) -> None:
        self.kind, self.id = kind, id
        super().__init__(f"there is no {kind} {id!r}")


class ConflictError(AsapError):
    """The message says the present state and what would be allowed."""

    def __init__(self, message: str, path: str | None = None) -> None:
        self.path = path
        super().__init__(message)


class FencedError(AsapError):
    """The worker that gets it has lost its claim: nothing it writes is kept."""


class CancelledError(AsapError):
    """Raised when the session next writes its events."""


class HandBackError(Exception):
    """The job must go on elsewhere or later: this worker stops, or has lost its lease."""


class OutOfTimeError(AsapError):
    """The message says what would help."""


class SchemaError(AsapError):
    """The database has tables that this version can neither use nor upgrade; nothing in it was changed."""


class QuotaError(AsapError):
    """A key or tenant has reached its limit."""


class FullDiskError(AsapError):
    """There is no room on the disk for what comes in."""


class UnauthenticatedError(AsapError):
    """The message never says which part of a key was wrong."""


class IssuerError(AsapError):
    """The issuer's keys are not available; the caller's token may be valid."""


class ForbiddenError(AsapError):
    """The message names the scope that is missing."""
