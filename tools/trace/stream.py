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


_QUOTE, _BACKSLASH = ord('"'), ord("\\")


def _signed_depth_table() -> NDArray[np.int8]:
    table = np.zeros(256, dtype=np.int8)
    table[[ord("{"), ord("[")]] = 1
    table[[ord("}"), ord("]")]] = -1
    return table


def scan_depth(buffer: bytes) -> NDArray[np.int32]:
    """Nesting depth after each byte, counted from zero at the start, brackets in strings left out."""
    characters = np.frombuffer(buffer, dtype=np.uint8)
    quotes = _unescaped_quotes(characters)
    steps = _signed_depth_table()[characters]
    inside = np.zeros(len(characters), dtype=np.int8)
    inside[quotes] = 1
    inside = np.bitwise_and(np.cumsum(inside, dtype=np.int32), 1).astype(np.int8)
    return np.cumsum(steps * (1 - inside), dtype=np.int32)


def find_array_end(buffer: bytes) -> int | None:
    """Position of the bracket that closes the array the buffer starts inside of."""
    closed = np.flatnonzero(scan_depth(buffer) < 0)
    return int(closed[0]) if len(closed) else None


def find_last_element_end(buffer: bytes) -> int | None:
    """Position after the last complete object of the array the buffer starts inside of."""
    depth = scan_depth(buffer)
    closing = np.flatnonzero((depth == 0) & (np.frombuffer(buffer, dtype=np.uint8) == ord("}")))
    # A brace inside a string also has depth zero when no object is open; there is none between elements.
    return int(closing[-1]) + 1 if len(closing) else None


def _unescaped_quotes(characters: NDArray[np.uint8]) -> NDArray[np.int64]:
    quotes = np.flatnonzero(characters == _QUOTE)
    backslashes = np.flatnonzero(characters == _BACKSLASH)
    if not len(backslashes):
        return quotes
    return np.asarray(quotes[_backslashes_before(quotes, backslashes) % 2 == 0])


def _backslashes_before(quotes: NDArray[np.int64], backslashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Length of the run of backslashes that ends right before each quote."""
    breaks = np.diff(backslashes, prepend=-2) != 1
    run_starts = np.maximum.accumulate(np.where(breaks, np.arange(len(backslashes)), 0))
    run_lengths = np.arange(len(backslashes)) - run_starts + 1
    last = np.searchsorted(backslashes, quotes) - 1
    adjacent = (last >= 0) & (backslashes[last] == quotes - 1)
    return np.where(adjacent, run_lengths[last], 0)


_FIRST = 1
"""Position of the first data byte: the one before it is free for a bracket."""


class Window:
    """Bytes of the file from the first one not yet consumed."""

    def __init__(self, source: JsonSource, size_bytes: int) -> None:
        self.buffer = bytearray(_FIRST + size_bytes)
        self.end = _FIRST
        self.at_end_of_file = False
        self._source = source
        self._consumed = _FIRST

    def fill(self) -> None:
        """Drops what was consumed and reads until the buffer is full or the file ends."""
        rest = self.rest()
        if self._consumed > _FIRST:
            self.buffer[_FIRST : _FIRST + len(rest)] = rest
            self._consumed = _FIRST
        elif len(rest) == len(self.buffer) - _FIRST:
            # Nothing could be consumed: a new, larger buffer, because texts may still point into this one.
            self.buffer = self.buffer + bytes(len(self.buffer))
        self.end = _FIRST + len(rest)
        count = self._source.fill(memoryview(self.buffer)[self.end :])
        self.end += count
        self.at_end_of_file = self.end < len(self.buffer)

    def rest(self) -> bytes:
        """A copy of what is not consumed."""
        return bytes(memoryview(self.buffer)[self._consumed : self.end])

    def consume(self, count: int) -> None:
        """Marks bytes of `rest` as done."""
        self._consumed += count

    @property
    def start(self) -> int:
        """Position in `buffer` of the first byte not consumed."""
        return self._consumed

    def __len__(self) -> int:
        return self.end - self._consumed


WINDOW_BYTES = 1 << 18
"""Stays in the processor's cache; fresh memory for each batch would cost more than inflating it."""
MAX_EVENT_BYTES = 16 << 20
MAX_METADATA_BYTES = 32 << 20

_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("[^"\\]{1,40}")')
_NO_EVENT = re.compile(rb"(?!)")
_COMMA = re.compile(rb"\s*,")
# Some writers print `inf` or `nan` for a rate over zero time; JSON has neither.
_NOT_JSON_NUMBER = re.compile(
    rb"([:\[,]\s*)[-+]?(?:inf(?:inity)?|nan(?:\(\w*\))?)(?=\s*[,}\]])", re.IGNORECASE
)
_CUT_SEARCH_BYTES = 8 << 10
_OPEN, _CLOSE, _COMMA_BYTE = ord("["), ord("]"), ord(",")


Metadata = dict[str, Any]
"""The keys beside the event array, as the writer left them."""


E = TypeVar("E")


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
        try:
            yield from self._batches()
        except RecursionError as error:
            raise UnreadableTraceError("the JSON is nested too deeply") from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise UnreadableTraceError(f"not valid trace JSON: {error}") from error

    def _batches(self) -> Iterator[list[E]]:
        window = self._window
        self._read_head()
        first = _FIRST_KEY.match(window.buffer, window.start, window.end)
        if first:  # events of one writer begin with one key
            self._event_start = re.compile(rb"\}\s*(,)\s*\{\s*" + re.escape(first.group(1)))
        while not (self._ended or window.at_end_of_file):
            yield self._take()
            window.fill()
        if not self._ended:
            yield self._take()
        if not self._ended:
            yield self._take_exactly()
        if not self._ended:
            raise UnreadableTraceError("the JSON is truncated: the event array does not end")
        self._read_tail()

    def _read_head(self) -> None:
        """Leaves the window at the first event."""
        while len(self._window) <= MAX_METADATA_BYTES and not self._window.at_end_of_file:
            self._window.fill()
            head = self._window.rest()
            start = self._find_array(head)
            if start is not None:
                self._window.consume(start)
                return
        raise UnreadableTraceError(_no_events_reason(self._window.rest()))

    def _find_array(self, head: bytes) -> int | None:
        if head.lstrip()[:1] == b"[":
            return head.index(b"[") + 1
        opening = _find_opening(head)
        if opening is None:
            return None
        before = head[: opening.start()] + b'"traceEvents":[]}'
        self.metadata = msgspec.json.decode(before, type=Metadata)
        return opening.end()

    def _take(self) -> list[E]:
        """The next events of the window; none when it holds no complete one."""
        cut = self._guess_cut()
        events = self._try_decode(cut) if cut is not None else None
        return self._take_exactly() if events is None else events

    def _guess_cut(self) -> int | None:
        """Position in the buffer of the comma before the last event that seems to start there."""
        window = self._window
        near = max(window.start, window.end - _CUT_SEARCH_BYTES)
        # A writer separates all events by the same bytes: looking for these is a hundred times as fast.
        if self._separator and (at := window.buffer.rfind(self._separator, near, window.end)) >= 0:
            return at + self._separator.index(b",")
        for search_start in (near, window.start):
            matches = list(self._event_start.finditer(window.buffer, search_start, window.end))
            if matches:
                self._separator = matches[-1].group()
                return matches[-1].start(1)
        return None

    def _try_decode(self, cut: int) -> list[E] | None:
        """Decodes up to the comma at `cut` in place: brackets stand in for the bytes around the events."""
        buffer, start = self._window.buffer, self._window.start
        buffer[start - 1], buffer[cut] = _OPEN, _CLOSE
        try:
            events = self._decode(memoryview(buffer)[start - 1 : cut + 1])
        except msgspec.DecodeError:
            buffer[cut] = _COMMA_BYTE
            return None
        self._window.consume(cut + 1 - start)
        return events

    def _take_exactly(self) -> list[E]:
        rest = self._window.rest()
        end = find_array_end(rest)
        if end is not None:
            self._ended = True
            self._window.consume(end + 1)
            return self._decode_repaired(rest[:end]) if rest[:end].strip() else []
        cut = find_last_element_end(rest)
        comma = _COMMA.match(rest, cut) if cut is not None else None
        if comma is None:
            if len(rest) > MAX_EVENT_BYTES:
                raise UnreadableTraceError(f"one event is larger than {MAX_EVENT_BYTES >> 20} MiB")
            return []
        self._window.consume(comma.end())
        return self._decode_repaired(rest[:cut])

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
        while not window.at_end_of_file and len(window) <= MAX_METADATA_BYTES:
            window.fill()
        tail = window.rest().strip()
        if not tail and not self.metadata:
            return
        if not tail:
            raise UnreadableTraceError("the JSON is truncated after the event array")
        self.metadata.update(msgspec.json.decode(b"{" + tail.removeprefix(b","), type=Metadata))
        self.metadata.pop("traceEvents", None)


def _find_opening(head: bytes) -> re.Match[bytes] | None:
    """Where the array of events begins: its key stands in the outermost object, not in one inside it."""
    first = _ARRAY_START.search(head)
    if first is None or scan_depth(head[: first.end()])[first.start()] == 1:
        return first
    depth = scan_depth(head)
    return next((match for match in _ARRAY_START.finditer(head) if depth[match.start()] == 1), None)


def _no_events_reason(head: bytes) -> str:
    if not head.strip():
        return "the file is empty"
    try:
        msgspec.json.decode(head)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"not valid trace JSON: {error}"
    return "there is no traceEvents array in it"
