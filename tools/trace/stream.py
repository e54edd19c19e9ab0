"""The event array of a Chrome trace as batches of decoded events, from plain or gzip files, in bounded
memory.

The file passes through one fixed window; damaged or truncated gzip and gzip bombs are refused.
"""

import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, cast

import msgspec
import numpy as np
from isal import igzip, isal_zlib
from numpy.typing import NDArray

from tools.trace.events import Buffer
from tools.trace.record import UnreadableTraceError

# isal's stub calls its error class an instance.
_DAMAGED = (igzip.BadGzipFile, cast(type[Exception], isal_zlib.error), zlib.error)
_GZIP_MAGIC = b"\x1f\x8b"
_FIRST = 1
"""Position of the first data byte: the one before it is free for a bracket."""
WINDOW_BYTES = 1 << 18
"""Stays in the processor's cache; fresh memory for each batch would cost more than inflating it."""
MAX_EVENT_BYTES = 16 << 20
_MAX_METADATA_BYTES = 32 << 20
_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("[^"\\]{1,40}")')
_NO_EVENT = re.compile(rb"(?!)")
_COMMA = re.compile(rb"\s*,")
# Some writers print `inf` or `nan` for a rate over zero time; JSON has neither.
_NOT_JSON_NUMBER = re.compile(
    rb"([:\[,]\s*)[-+]?(?:inf(?:inity)?|nan(?:\(\w*\))?)(?=\s*[,}\]])", re.IGNORECASE
)
_CUT_SEARCH_BYTES = 8 << 10
_DEPTH_STEPS = np.array([(byte in b"{[") - (byte in b"}]") for byte in range(256)], dtype=np.int8)
Metadata = dict[str, Any]
"""The keys beside the event array, as the writer left them."""
E = TypeVar("E")


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
        filled, limits = 0, self._limits
        try:
            while filled < len(view) and (count := self._file.readinto(view[filled:])):  # type: ignore[attr-defined]
                filled += count
        except EOFError as error:
            raise UnreadableTraceError("the gzip data is truncated") from error
        except _DAMAGED as error:
            raise UnreadableTraceError(f"the gzip data is damaged: {error}") from error
        except OSError as error:
            raise UnreadableTraceError(f"cannot be read: {error.strerror or error}") from error
        self.json_bytes += filled
        if self.json_bytes > limits.max_json_bytes:
            raise UnreadableTraceError(f"holds more than {limits.max_json_bytes / (1 << 30):.3g} GiB of JSON")
        expanded = self.json_bytes > self._file_bytes * limits.max_expansion_ratio
        if expanded and self.json_bytes > limits.expansion_free_bytes:
            raise UnreadableTraceError(
                f"expands more than {limits.max_expansion_ratio:.0f} times (gzip bomb?)"
            )
        return filled


@contextmanager
def open_json(path: Path, limits: ReadLimits) -> Iterator[JsonSource]:
    """Opens a trace file; the first bytes say whether it is gzip."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise UnreadableTraceError(f"cannot be opened: {error.strerror or error}") from error
    with raw:
        file_bytes = path.stat().st_size
        is_gzip = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        raw.seek(0)
        file = igzip.open(raw, "rb") if is_gzip else raw  # type: ignore[no-untyped-call]
        yield JsonSource(cast(BinaryIO, file), file_bytes, limits)


class Window:
    """Bytes of the file from the first one not yet consumed, at `start` in `buffer`."""

    def __init__(self, source: JsonSource, size_bytes: int) -> None:
        self.buffer = bytearray(_FIRST + size_bytes)
        self.start = self.end = _FIRST
        self.at_end_of_file = False
        self._source = source

    def __len__(self) -> int:
        return self.end - self.start

    def fill(self) -> None:
        """Drops what was consumed and reads until the buffer is full or the file ends."""
        rest = self.rest()
        if self.start > _FIRST:
            self.buffer[_FIRST : _FIRST + len(rest)] = rest
            self.start = _FIRST
        elif len(rest) == len(self.buffer) - _FIRST:
            # Nothing could be consumed: a new, larger buffer, because texts may still point into this one.
            self.buffer = self.buffer + bytes(len(self.buffer))
        self.end = _FIRST + len(rest)
        self.end += self._source.fill(memoryview(self.buffer)[self.end :])
        self.at_end_of_file = self.end < len(self.buffer)

    def rest(self) -> bytes:
        """A copy of what is not consumed."""
        return bytes(memoryview(self.buffer)[self.start : self.end])


class EventStream(Generic[E]):
    """Iterates over batches of events; `metadata` is complete once the iteration has ended.

    The texts of a batch live in the window: they are gone when the next batch is read.
    """

    def __init__(self, source: JsonSource, decode: Callable[[Buffer], list[E]]) -> None:
        self.metadata: Metadata = {}
        self.repaired = False
        self._decode = decode
        self._window = Window(source, WINDOW_BYTES)
        self._ended = False
        self._event_start = _NO_EVENT
        self._separator = b""

    def __iter__(self) -> Iterator[list[E]]:
        window = self._window
        try:
            self._read_head()
            first = _FIRST_KEY.match(window.buffer, window.start, window.end)
            if first:  # events of one writer begin with one key
                self._event_start = re.compile(rb"\}\s*(,)\s*\{\s*" + re.escape(first.group(1)))
            while not (self._ended or window.at_end_of_file):
                yield self._take()
                window.fill()
            for take_rest in (self._take, self._take_exactly):
                if not self._ended:
                    yield take_rest()
            if not self._ended:
                raise UnreadableTraceError("the JSON is truncated: the event array does not end")
            self._read_tail()
        except RecursionError as error:
            raise UnreadableTraceError("the JSON is nested too deeply") from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise UnreadableTraceError(f"not valid trace JSON: {error}") from error

    def _read_head(self) -> None:
        """Leaves the window at the first event; the array's key stands in the outermost object."""
        window = self._window
        while len(window) <= _MAX_METADATA_BYTES and not window.at_end_of_file:
            window.fill()
            head = window.rest()
            if head.lstrip()[:1] == b"[":
                window.start += head.index(b"[") + 1
                return
            opening = _ARRAY_START.search(head)
            if opening is not None and scan_depth(head[: opening.end()])[opening.start()] != 1:
                depth = scan_depth(head)
                opening = next((key for key in _ARRAY_START.finditer(head) if depth[key.start()] == 1), None)
            if opening is not None:
                before = head[: opening.start()] + b'"traceEvents":[]}'
                self.metadata = msgspec.json.decode(before, type=Metadata)
                window.start += opening.end()
                return
        head = window.rest()
        if not head.strip():
            raise UnreadableTraceError("the file is empty")
        msgspec.json.decode(head)
        raise UnreadableTraceError("there is no traceEvents array in it")

    def _take(self) -> list[E]:
        """The next events of the window; none when it holds no complete one.

        They are decoded in place up to the comma before the last event that seems to start in the window:
        brackets stand in for the bytes around them.
        """
        window, cut = self._window, None
        buffer, start, end = window.buffer, window.start, window.end
        near = max(start, end - _CUT_SEARCH_BYTES)
        # A writer separates all events by the same bytes: looking for these is a hundred times as fast.
        if self._separator and (at := buffer.rfind(self._separator, near, end)) >= 0:
            cut = at + self._separator.index(b",")
        else:
            for search_start in (near, start):
                if matches := list(self._event_start.finditer(buffer, search_start, end)):
                    self._separator, cut = matches[-1].group(), matches[-1].start(1)
                    break
        if cut is not None:
            buffer[start - 1], buffer[cut] = b"[]"
            try:
                events = self._decode(memoryview(buffer)[start - 1 : cut + 1])
            except msgspec.DecodeError:
                buffer[cut] = ord(",")
            else:
                window.start = cut + 1
                return events
        return self._take_exactly()

    def _take_exactly(self) -> list[E]:
        window = self._window
        rest = window.rest()
        depth = scan_depth(rest)
        closed = np.flatnonzero(depth < 0)
        if len(closed):
            self._ended = True
            window.start += int(closed[0]) + 1
            elements = rest[: closed[0]]
            return self._decode_repaired(elements) if elements.strip() else []
        # A brace inside a string also has depth zero when no object is open; there is none between elements.
        objects = np.flatnonzero((depth == 0) & (np.frombuffer(rest, dtype=np.uint8) == ord("}")))
        comma = _COMMA.match(rest, int(objects[-1]) + 1) if len(objects) else None
        if comma is None:
            if len(rest) > MAX_EVENT_BYTES:
                raise UnreadableTraceError(f"one event is larger than {MAX_EVENT_BYTES >> 20} MiB")
            return []
        window.start += comma.end()
        return self._decode_repaired(rest[: comma.start()])

    def _decode_repaired(self, elements: bytes) -> list[E]:
        try:
            return self._decode(b"[" + elements + b"]")
        except msgspec.DecodeError:
            repaired, count = _NOT_JSON_NUMBER.subn(rb"\1null", elements)
            if not count:
                raise
            self.repaired = True
            return self._decode(b"[" + repaired + b"]")

    def _read_tail(self) -> None:
        window = self._window
        while not window.at_end_of_file and len(window) <= _MAX_METADATA_BYTES:
            window.fill()
        tail = window.rest().strip()
        if tail:
            self.metadata.update(msgspec.json.decode(b"{" + tail.removeprefix(b","), type=Metadata))
            self.metadata.pop("traceEvents", None)
        elif self.metadata:
            raise UnreadableTraceError("the JSON is truncated after the event array")


def scan_depth(buffer: bytes) -> NDArray[np.int32]:
    """Nesting depth after each byte, counted from zero at the start, brackets in strings left out."""
    characters = np.frombuffer(buffer, dtype=np.uint8)
    quotes = np.flatnonzero(characters == ord('"'))
    backslashes = np.flatnonzero(characters == ord("\\"))
    if len(backslashes):
        # An odd run of backslashes right before a quote escapes it.
        places = np.arange(len(backslashes))
        breaks = np.diff(backslashes, prepend=-2) != 1
        run_lengths = places - np.maximum.accumulate(np.where(breaks, places, 0)) + 1
        last = np.searchsorted(backslashes, quotes) - 1
        adjacent = (last >= 0) & (backslashes[last] == quotes - 1)
        quotes = quotes[~adjacent | (run_lengths[last] % 2 == 0)]
    inside = np.zeros(len(characters), dtype=np.int8)
    inside[quotes] = 1
    inside = np.bitwise_and(np.cumsum(inside, dtype=np.int32), 1).astype(np.int8)
    return np.cumsum(_DEPTH_STEPS[characters] * (1 - inside), dtype=np.int32)
