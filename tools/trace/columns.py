"""Decoded event batches gathered into columns: exact times, the arguments that analyses use, memory
counters.

Times are parsed as decimal digits: a float64 has steps of 0.25 microseconds near today's epoch.
"""

import zlib
from collections.abc import Callable, Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tools.trace.events import DeviceArguments, MemoryEvent, ShapeArguments, Span
from tools.trace.record import (
    NO_LINK,
    CollectiveArguments,
    Integers,
    MemoryCounter,
    OpArguments,
    Spans,
    UnreadableTraceError,
    empty_spans,
)

Nanoseconds: TypeAlias = NDArray[np.int64]

_SEPARATOR = b"\n"
"""Between texts: no JSON number and no JSON string holds one."""
_DOT = ord(".")
_DECIMALS = 3
_MAX_WHOLE_DIGITS = 16
_MAX_MICROSECONDS = 9_200_000_000_000_000
"""int64 nanoseconds reach the year 2262."""


def parse_nanoseconds(texts: Sequence[bytes]) -> Nanoseconds:
    """One integer per JSON number text in microseconds."""
    return _parse_joined(_SEPARATOR.join(texts), len(texts))


def _parse_joined(joined: bytes, count: int) -> Nanoseconds:
    if not count:
        return np.empty(0, dtype=np.int64)
    fast = _parse_plain(joined, count)
    return _parse_any(joined.split(_SEPARATOR)) if fast is None else fast


def _parse_plain(joined: bytes, count: int) -> Nanoseconds | None:
    """All texts at once when each is digits with at most one dot and three decimals; else None."""
    if joined.translate(None, b"0123456789.\n"):
        return None
    characters = np.frombuffer(joined, dtype=np.uint8)
    ends = np.append(np.flatnonzero(characters == _SEPARATOR[0]), len(joined))
    if len(ends) != count:
        return None
    lengths = np.diff(ends, prepend=-1) - 1
    decimals = _count_decimals(np.flatnonzero(characters == _DOT), ends)
    whole_digits = lengths - decimals
    if lengths.min() < 1 or decimals.max() > _DECIMALS or whole_digits.max() > _MAX_WHOLE_DIGITS + 1:
        return None
    values = np.fromstring(joined.translate(None, b"."), dtype=np.int64, sep=" ")
    if (values > _MAX_MICROSECONDS * 10**decimals).any():
        return None
    return np.asarray(values * 10 ** (_DECIMALS - decimals), dtype=np.int64)


def _count_decimals(dots: Nanoseconds, ends: Nanoseconds) -> Nanoseconds:
    decimals = np.zeros(len(ends), dtype=np.int64)
    owners = np.searchsorted(ends, dots)
    decimals[owners] = ends[owners] - dots - 1
    return decimals


def _parse_any(texts: Sequence[bytes]) -> Nanoseconds:
    return np.array([_parse_one(text) for text in texts], dtype=np.int64)


def _parse_one(text: bytes) -> int:
    shown = text[:40].decode("utf-8", "replace")
    try:
        value = Decimal(text.decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError, ValueError) as error:
        raise UnreadableTraceError(f"a time is not a number: {shown!r}") from error
    # The exponent is checked before any arithmetic: 1e999999999 must cost nothing.
    if not value.is_finite() or value.adjusted() >= _MAX_WHOLE_DIGITS or abs(value) > _MAX_MICROSECONDS:
        raise UnreadableTraceError(f"a time is out of range: {shown!r}")
    if value.adjusted() < -_MAX_WHOLE_DIGITS:
        return 0
    return int((value * 10**_DECIMALS).to_integral_value(ROUND_HALF_EVEN))


_INT64_LIMIT = 1 << 62
_MAX_RANKS = 1 << 20


def as_links(correlations: list[int | None]) -> Integers:
    """Correlations as a column; absent or absurd ones are no link."""
    try:
        return np.fromiter(correlations, np.int64, len(correlations))
    except (TypeError, ValueError, OverflowError):
        return np.array(
            [NO_LINK if link is None else _bounded(link, NO_LINK) for link in correlations], dtype=np.int64
        )


def as_lanes(tracks: Sequence[object]) -> Integers:
    """Streams or threads as a column; texts become numbers of their own."""
    try:
        return np.fromiter(tracks, np.int64, len(tracks))
    except (TypeError, ValueError, OverflowError):
        return np.array([_as_lane(track) for track in tracks], dtype=np.int64)


def _as_lane(track: object) -> int:
    if isinstance(track, str):
        return zlib.crc32(track.encode("utf-8", "replace"))
    return _bounded(int(track), 0) if isinstance(track, int | float) and abs(track) < _INT64_LIMIT else 0


def _bounded(value: int, otherwise: int) -> int:
    return value if abs(value) < _INT64_LIMIT else otherwise


def as_collective(arguments: DeviceArguments) -> CollectiveArguments:
    """The description in our terms."""
    return CollectiveArguments(
        kind=arguments.collective,
        group=arguments.group,
        ranks=parse_ranks(arguments.ranks),
        group_size=_count(arguments.group_size),
        in_elements=_count(arguments.in_elements),
        out_elements=_count(arguments.out_elements),
        dtype=arguments.dtype,
    )


def as_op_arguments(arguments: ShapeArguments) -> OpArguments | None:
    """None when shapes were not recorded."""
    if not arguments.dims:
        return None
    return OpArguments(
        dims=tuple(arguments.dims),
        types=tuple(map(str, arguments.types or ())),
        concrete=tuple(map(str, arguments.concrete or ())),
    )


def parse_ranks(text: str | None) -> tuple[int, ...] | None:
    """`"[0, 1]"` to numbers; None for an abbreviated or strange list."""
    if not text or "..." in text:
        return None
    try:
        ranks = msgspec.json.decode(text.encode(), type=list[int])
    except msgspec.DecodeError:
        return None
    return tuple(ranks) if 0 < len(ranks) <= _MAX_RANKS else None


def _count(elements: int | None) -> int | None:
    return elements if elements is not None and 0 <= elements < _INT64_LIMIT else None


_MAX_DURATION_NS = 10**16
"""116 days. No profile lasts longer, and an end of every start that can be parsed still fits into int64."""


def check_times(start_ns: Integers, duration_ns: Integers, name_at: Callable[[int], str]) -> None:
    """Raises UnreadableTraceError if arithmetic on the times would overflow or go backwards."""
    for what, wrong, how in (
        ("duration", duration_ns < 0, "negative"),
        ("duration", duration_ns > _MAX_DURATION_NS, "out of range"),
        ("start", start_ns < -_MAX_DURATION_NS, "out of range"),
    ):
        if wrong.any():
            raise UnreadableTraceError(f"the {what} of {name_at(int(wrong.argmax()))[:60]!r} is {how}")


class NameTable(dict[str, int]):
    """Numbers names in the order they are first seen."""

    def __missing__(self, name: str) -> int:
        number = len(self)
        self[name] = number
        return number

    def number(self, names: Sequence[str]) -> Integers:
        """The number of each name."""
        return np.fromiter(map(self.__getitem__, names), np.int64, len(names))


class SpanColumns:
    """Grows by batches, ends as one `Spans`."""

    def __init__(self, names: NameTable) -> None:
        self.length = 0
        self._names = names
        self._numbers: list[Integers] = []
        self._lanes: list[Integers] = []
        self._links: list[Integers] = []
        self._start_ns, self._duration_ns = _TimeColumn(), _TimeColumn()

    def add(self, events: Sequence[Span], lanes: Integers, links: Integers | None = None) -> None:
        """Appends events; all batches have `links`, or none has."""
        if not events:
            return
        self._start_ns.add([event.ts for event in events])
        self._duration_ns.add([event.dur for event in events])
        self._numbers.append(self._names.number([event.name for event in events]))
        self._lanes.append(lanes)
        if links is not None:
            self._links.append(links)
        self.length += len(events)

    def finish(self) -> Spans:
        """All events added, in file order."""
        if not self.length:
            return empty_spans()
        start_ns, duration_ns = self._start_ns.finish(), self._duration_ns.finish()
        numbers = np.concatenate(self._numbers)
        check_times(start_ns, duration_ns, lambda position: list(self._names)[numbers[position]])
        links = np.concatenate(self._links) if self._links else np.full(self.length, NO_LINK)
        return Spans(start_ns, start_ns + duration_ns, numbers, np.concatenate(self._lanes), links)


_MAX_TEXT_BYTES = 1 << 17


class _TimeColumn:
    """Parses many batches in one go: batches are short, and a call into NumPy costs more than its numbers."""

    def __init__(self) -> None:
        self._parts: list[Nanoseconds] = []
        self._texts: list[bytes] = []
        self._count = self._text_bytes = 0

    def add(self, texts: Sequence[bytes]) -> None:
        joined = _SEPARATOR.join(texts)
        self._texts.append(joined)
        self._count += len(texts)
        self._text_bytes += len(joined)
        if self._text_bytes >= _MAX_TEXT_BYTES:
            self._parse()

    def _parse(self) -> None:
        self._parts.append(_parse_joined(_SEPARATOR.join(self._texts), self._count))
        self._texts.clear()
        self._count = self._text_bytes = 0

    def finish(self) -> Nanoseconds:
        self._parse()
        return np.concatenate(self._parts)


_CPU_DEVICE_TYPE = 0
"""c10::DeviceType of the host; every other number is an accelerator."""


class MemoryColumns:
    """Grows by batches; events that lack totals are left out."""

    def __init__(self) -> None:
        self._figures: list[Integers] = []
        self._time_ns = _TimeColumn()

    def add(self, events: Sequence[MemoryEvent]) -> None:
        """Appends the events of one batch."""
        figures: list[int | None] = []
        for event in events:
            args = event.args
            figures += (args.device_type, args.device, args.allocated, args.reserved)
        if None in figures:
            complete = [event for event in events if None not in msgspec.structs.astuple(event.args)]
            self.add(complete)
        elif events:
            self._figures.append(np.array(figures, dtype=np.int64).reshape(len(events), -1))
            self._time_ns.add([event.ts for event in events])

    def finish(self) -> tuple[MemoryCounter, ...]:
        """One counter per device, accelerators first."""
        if not self._figures:
            return ()
        columns = np.vstack([self._time_ns.finish(), np.concatenate(self._figures).T])
        columns = columns[:, np.argsort(columns[0], kind="stable")]
        devices = sorted(set(zip(columns[1].tolist(), columns[2].tolist(), strict=True)))
        counters = [_counter(columns, kind, device) for kind, device in devices]
        return tuple(sorted(counters, key=lambda counter: not counter.is_accelerator))


def _counter(columns: Integers, kind: int, device: int) -> MemoryCounter:
    time_ns, _, _, allocated, reserved = columns[:, (columns[1] == kind) & (columns[2] == device)]
    return MemoryCounter(time_ns, allocated, reserved, is_accelerator=kind != _CPU_DEVICE_TYPE)
