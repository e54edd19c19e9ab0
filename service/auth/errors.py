"""What stops a caller at the door.

AsapError
├── UnauthenticatedError   nobody we know: no key, a wrong one, one that is no longer valid
├── IssuerError            whether we know them cannot be said now
└── ForbiddenError         somebody we know, who may not do this
"""

from tools.errors import AsapError


class UnauthenticatedError(AsapError):
    """The message never says which part of a key was wrong."""


class IssuerError(AsapError):
    """The issuer's keys cannot be had; the caller's token may be a good one."""


class ForbiddenError(AsapError):
    """The message names the scope that is missing."""
