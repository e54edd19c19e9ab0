"""Errors of the service, under the tree of tools/errors.py.

AsapError
├── NotFoundError        there is no such thing, or it belongs to another tenant
├── ConflictError        it is there, and its present state does not allow this
├── FencedError          somebody else has taken the session over: whoever gets this must stop at once
├── CancelledError       a person asked the session to stop
├── OutOfTimeError       the session's time was over before it had anything to report
└── NewerDatabaseError   a newer version of the program has upgraded the database
"""

from tools.errors import AsapError


class NotFoundError(AsapError):
    """Says the same whether a thing is absent or another tenant's."""

    def __init__(self, kind: str, id: str) -> None:
        self.kind, self.id = kind, id
        super().__init__(f"there is no {kind} {id!r}")


class ConflictError(AsapError):
    """The message says the present state and what would be allowed."""

    def __init__(self, message: str, field: str | None = None) -> None:
        self.field = field
        super().__init__(message)


class FencedError(AsapError):
    """Nothing that its receiver writes is kept any more."""


class CancelledError(AsapError):
    """Raised where the session tells its next event."""


class OutOfTimeError(AsapError):
    """The message says what would help."""


class NewerDatabaseError(AsapError):
    """Nothing is read or written: what the newer schema means is not known here."""

    def __init__(self, revision: str, last_known: str) -> None:
        super().__init__(
            f"the database has the schema revision {revision}, which this version of asap does not know "
            f"(its last is {last_known}); install the newer version that upgraded the database"
        )
