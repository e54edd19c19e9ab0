"""The error of the engines that run jobs; what a caller got wrong is an InputError instead."""

from tools.errors import AsapError


class LaunchError(AsapError):
    """The engine refused, cannot be reached, or has lost the job; the message repeats its words."""
