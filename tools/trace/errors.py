"""The one error of trace reading.

`UnreadableTraceError` means one file cannot be used. A folder is still analysed without it, so callers
that read several files catch it and list the reason; only a folder with nothing readable is the user's
error.
"""

from tools.errors import AsapError


class UnreadableTraceError(AsapError):
    """A trace file cannot be read; the message is the reason."""
