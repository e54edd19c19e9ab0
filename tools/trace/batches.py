"""The event array of a chrome trace as batches of decoded events, with bounded memory.

The file passes through one fixed window. The array is cut between events by a guess (the last place that
looks like the start of an event). A batch that decodes proves the guess: its brackets balance from a known
start. One that does not is cut again by `structure.py`, and only then refused. What stands before and after
the array is kept as metadata.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from tools.trace.decompress import JsonSource
from tools.trace.errors import UnreadableTraceError
from tools.trace.structure import find_array_end, find_last_element_end, scan_depth
from tools.trace.window import Window

WINDOW_BYTES = 1 << 19
"""Stays in the processor's cache; fresh memory for each batch would cost more than inflating it."""
MAX_EVENT_BYTES = 16 << 20
MAX_METADATA_BYTES = 32 << 20

_ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY = re.compile(rb'\s*\{\s*("[^"\\]{1,40}")')
_COMMA = re.compile(rb"\s*,")
# Some writers print `inf` or `nan` for a rate over zero time; JSON has neither.
_NOT_JSON_NUMBER = re.compile(
    rb"([:\[,]\s*)[-+]?(?:inf(?:inity)?|nan(?:\(\w*\))?)(?=\s*[,}\]])", re.IGNORECASE
)
_CUT_SEARCH_BYTES = 8 << 10
_OPEN, _CLOSE, _COMMA_BYTE = ord("["), ord("]"), ord(",")


class TraceEvent(msgspec.Struct, gc=False):
    """The keys that every analysis needs; `ts`, `dur` and `args` stay text until they are wanted.

    Each key costs time in every event. `ph` is left out because the category says as much.
    """

    cat: str = ""
    name: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"missing")
    dur: msgspec.Raw = msgspec.Raw(b"0")
    tid: int | float | str | None = None
    args: msgspec.Raw = msgspec.Raw(b"{}")


class EventStream:
    """Iterates over batches of events; `metadata` is complete once the iteration has ended.

    The texts of a batch live in the window: they are gone when the next batch is asked for.
    """

    def __init__(self, source: JsonSource) -> None:
        self.metadata: dict[str, Any] = {}
        self.repaired = False
        self._decoder = msgspec.json.Decoder(list[TraceEvent])
        self._window = Window(source, WINDOW_BYTES)
        self._ended = False

    def __iter__(self) -> Iterator[list[TraceEvent]]:
        try:
            yield from self._batches()
        except RecursionError as error:
            raise UnreadableTraceError("the JSON is nested too deeply") from error
        except (msgspec.DecodeError, UnicodeError) as error:
            raise UnreadableTraceError(f"not valid trace JSON: {error}") from error

    def _batches(self) -> Iterator[list[TraceEvent]]:
        window = self._window
        self._read_head()
        event_start = _event_start_pattern(window)
        while not (self._ended or window.at_end_of_file):
            yield self._take(event_start)
            window.fill()
        for pattern in (event_start, None):
            if not self._ended:
                yield self._take(pattern)
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
        self.metadata = msgspec.json.decode(before, type=dict[str, Any])
        return opening.end()

    def _take(self, event_start: re.Pattern[bytes] | None) -> list[TraceEvent]:
        """The next events of the window; none when it holds no complete one."""
        cut = _guess_cut(self._window, event_start) if event_start else None
        events = self._try_decode(cut) if cut is not None else None
        return self._take_exactly() if events is None else events

    def _try_decode(self, cut: int) -> list[TraceEvent] | None:
        """Decodes up to the comma at `cut` in place: brackets stand in for the bytes around the events."""
        buffer, start = self._window.buffer, self._window.start
        buffer[start - 1], buffer[cut] = _OPEN, _CLOSE
        try:
            events = self._decoder.decode(memoryview(buffer)[start - 1 : cut + 1])
        except msgspec.DecodeError:
            buffer[cut] = _COMMA_BYTE
            return None
        self._window.consume(cut + 1 - start)
        return events

    def _take_exactly(self) -> list[TraceEvent]:
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

    def _decode_repaired(self, elements: bytes) -> list[TraceEvent]:
        try:
            return self._decoder.decode(b"[" + elements + b"]")
        except msgspec.DecodeError:
            repaired, count = _NOT_JSON_NUMBER.subn(rb"\1null", elements)
            if not count:
                raise
            self.repaired = True
            return self._decoder.decode(b"[" + repaired + b"]")

    def _read_tail(self) -> None:
        window = self._window
        while not window.at_end_of_file and len(window) <= MAX_METADATA_BYTES:
            window.fill()
        tail = window.rest().strip()
        if not tail and not self.metadata:
            return
        if not tail:
            raise UnreadableTraceError("the JSON is truncated after the event array")
        self.metadata.update(msgspec.json.decode(b"{" + tail.removeprefix(b","), type=dict[str, Any]))
        self.metadata.pop("traceEvents", None)


def _find_opening(head: bytes) -> re.Match[bytes] | None:
    """Where the array of events begins: its key stands in the outermost object, not in one inside it."""
    if _ARRAY_START.search(head) is None:
        return None
    depth = scan_depth(head)
    return next((match for match in _ARRAY_START.finditer(head) if depth[match.start()] == 1), None)


def _event_start_pattern(window: Window) -> re.Pattern[bytes] | None:
    """Events of one writer begin with one key; the first event tells which."""
    first = _FIRST_KEY.match(window.buffer, window.start, window.end)
    return re.compile(rb"\}\s*(,)\s*\{\s*" + re.escape(first.group(1))) if first else None


def _guess_cut(window: Window, event_start: re.Pattern[bytes]) -> int | None:
    """Position in the buffer of the comma before the last event that seems to start there."""
    for search_start in (max(window.start, window.end - _CUT_SEARCH_BYTES), window.start):
        cut = None
        for match in event_start.finditer(window.buffer, search_start, window.end):
            cut = match.start(1)
        if cut is not None:
            return cut
    return None


def _no_events_reason(head: bytes) -> str:
    if not head.strip():
        return "the file is empty"
    try:
        msgspec.json.decode(head)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"not valid trace JSON: {error}"
    return "there is no traceEvents array in it"
