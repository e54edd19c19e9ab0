"""A trace file as a bounded source of JSON bytes, gzip or plain.

Covers: gzip detection by content (not by name), truncated or damaged gzip, gzip bombs (total size and
ratio limits). Not here: what the bytes mean (`batches.py`).
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

from isal import igzip, isal_zlib

from tools.trace.errors import UnreadableTraceError

# isal's stub calls its error class an instance.
_DAMAGED = (igzip.BadGzipFile, cast(type[Exception], isal_zlib.error), zlib.error)
GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class ReadLimits:
    """What a file may cost before it is refused."""

    max_json_bytes: int = 16 << 30
    max_expansion_ratio: float = 400.0
    """Real traces shrink 10 to 30 times; gzip of one repeated byte about 1,000 times."""
    expansion_free_bytes: int = 64 << 20
    """Up to this size the ratio does not matter, because the cost is bounded anyway."""


class JsonSource:
    """Decompressed bytes in order, counted against the limits."""

    def __init__(self, file: BinaryIO, file_bytes: int, limits: ReadLimits) -> None:
        self.json_bytes = 0
        self._file = file
        self._file_bytes = file_bytes
        self._limits = limits

    def fill(self, view: memoryview) -> int:
        """Reads until the view is full or the file ends; how many bytes were read."""
        filled = 0
        while filled < len(view) and (count := self._read_into(view[filled:])):
            filled += count
        self.json_bytes += filled
        self._check_size()
        return filled

    def _read_into(self, view: memoryview) -> int:
        try:
            return self._file.readinto(view)  # type: ignore[attr-defined,no-any-return]
        except EOFError as error:
            raise UnreadableTraceError("the gzip data is truncated") from error
        except _DAMAGED as error:
            raise UnreadableTraceError(f"the gzip data is damaged: {error}") from error
        except OSError as error:
            raise UnreadableTraceError(f"cannot be read: {error.strerror or error}") from error

    def _check_size(self) -> None:
        limits = self._limits
        if self.json_bytes > limits.max_json_bytes:
            raise UnreadableTraceError(f"holds more than {limits.max_json_bytes / (1 << 30):.3g} GiB of JSON")
        suspicious = self.json_bytes > limits.expansion_free_bytes
        if suspicious and self.json_bytes > self._file_bytes * limits.max_expansion_ratio:
            raise UnreadableTraceError(
                f"expands more than {limits.max_expansion_ratio:.0f} times (gzip bomb?)"
            )


@contextmanager
def open_json(path: Path, limits: ReadLimits) -> Iterator[JsonSource]:
    """Opens a trace file; the first bytes say whether it is gzip."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise UnreadableTraceError(f"cannot be opened: {error.strerror or error}") from error
    with raw:
        file_bytes = path.stat().st_size
        is_gzip = raw.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        raw.seek(0)
        file = igzip.open(raw, "rb") if is_gzip else raw  # type: ignore[no-untyped-call]
        yield JsonSource(cast(BinaryIO, file), file_bytes, limits)
