"""What stops a caller at the door.

AsapError
├── UnauthenticatedError   nobody we know: no key, a wrong one, one that is no longer valid
└── ForbiddenError         somebody we know, who may not do this
"""

from tools.errors import AsapError


class UnauthenticatedError(AsapError):
    """The message never says which part of a key was wrong."""


class ForbiddenError(AsapError):
    """The message names the scope that is missing."""
