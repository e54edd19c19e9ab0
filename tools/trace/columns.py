"""Decoded event batches gathered into columns: exact times, the arguments that analyses use, memory
counters.

Times are parsed as decimal digits: a float64 has steps of 0.25 microseconds near today's epoch.
"""

import zlib
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import msgspec
import numpy as np

from tools.trace.events import MemoryEvent, Span
from tools.trace.record import NO_LINK, Integers, MemoryCounter, Spans, UnreadableTraceError, empty_spans

_SEPARATOR = b"\n"
"""Between texts: no JSON number and no JSON string holds one."""
_DECIMALS = 3
_MAX_WHOLE_DIGITS = 16
_MAX_MICROSECONDS = 9_200_000_000_000_000
"""int64 nanoseconds reach the year 2262."""
_INT64_LIMIT = 1 << 62
_MAX_DURATION_NS = 10**16
"""116 days. No profile lasts longer, and an end of every start that can be parsed still fits into int64."""
_MAX_TEXT_BYTES = 1 << 17
_CPU_DEVICE_TYPE = 0
"""c10::DeviceType of the host; every other number is an accelerator."""


def parse_nanoseconds(texts: Sequence[bytes]) -> Integers:
    """One integer per JSON number text in microseconds."""
    return _parse_joined(_SEPARATOR.join(texts), len(texts))


def _parse_joined(joined: bytes, count: int) -> Integers:
    """All texts at once when each is digits with at most one dot and three decimals; else one by one."""
    if not count:
        return np.empty(0, dtype=np.int64)
    if not joined.translate(None, b"0123456789.\n"):
        characters = np.frombuffer(joined, dtype=np.uint8)
        ends = np.append(np.flatnonzero(characters == _SEPARATOR[0]), len(joined))
        lengths = np.diff(ends, prepend=-1) - 1
        dots = np.flatnonzero(characters == ord("."))
        decimals = np.zeros(len(ends), dtype=np.int64)
        owners = np.searchsorted(ends, dots)
        decimals[owners] = ends[owners] - dots - 1
        is_plain = len(ends) == count and lengths.min() >= 1 and decimals.max() <= _DECIMALS
        if is_plain and (lengths - decimals).max() <= _MAX_WHOLE_DIGITS + 1:
            values = np.fromstring(joined.translate(None, b"."), dtype=np.int64, sep=" ")
            if (values <= _MAX_MICROSECONDS * 10**decimals).all():
                return np.asarray(values * 10 ** (_DECIMALS - decimals), dtype=np.int64)
    return np.array([_parse_one(text) for text in joined.split(_SEPARATOR)], dtype=np.int64)


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


def as_column(values: Sequence[object], absent: int = 0) -> Integers:
    """Streams, threads or correlations; texts become numbers of their own, absurd numbers are absent."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except (TypeError, ValueError, OverflowError):
        numbers = []
        for value in values:
            if isinstance(value, str):
                numbers.append(zlib.crc32(value.encode("utf-8", "replace")))
            else:
                is_number = isinstance(value, int | float) and abs(value) < _INT64_LIMIT
                numbers.append(int(value) if is_number else absent)  # type: ignore[call-overload]
        return np.array(numbers, dtype=np.int64)


class NameTable(dict[str, int]):
    """Numbers names in the order they are first seen."""

    def __missing__(self, name: str) -> int:
        number = len(self)
        self[name] = number
        return number

    def number(self, names: Sequence[str]) -> Integers:
        return np.fromiter(map(self.__getitem__, names), np.int64, len(names))

    def spans(
        self,
        start_ns: Integers,
        duration_ns: Integers,
        names: Integers,
        lanes: Integers,
        links: Integers | None,
    ) -> Spans:
        """Raises UnreadableTraceError if arithmetic on the times would overflow or go backwards."""
        for what, wrong, how in (
            ("duration", duration_ns < 0, "negative"),
            ("duration", duration_ns > _MAX_DURATION_NS, "out of range"),
            ("start", start_ns < -_MAX_DURATION_NS, "out of range"),
        ):
            if wrong.any():
                name = list(self)[names[wrong.argmax()]]
                raise UnreadableTraceError(f"the {what} of {name[:60]!r} is {how}")
        links = np.full(len(names), NO_LINK) if links is None else links
        return Spans(start_ns, start_ns + duration_ns, names, lanes, links)


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
        if not self.length:
            return empty_spans()
        start_ns, duration_ns = self._start_ns.finish(), self._duration_ns.finish()
        links = np.concatenate(self._links) if self._links else None
        numbers, lanes = np.concatenate(self._numbers), np.concatenate(self._lanes)
        return self._names.spans(start_ns, duration_ns, numbers, lanes, links)


class _TimeColumn:
    """Parses many batches in one go: batches are short, and a call into NumPy costs more than its numbers."""

    def __init__(self) -> None:
        self._parts: list[Integers] = []
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

    def finish(self) -> Integers:
        self._parse()
        return np.concatenate(self._parts)


class MemoryColumns:
    """Grows by batches; events that lack totals are left out."""

    def __init__(self) -> None:
        self._figures: list[Integers] = []
        self._time_ns = _TimeColumn()

    def add(self, events: Sequence[MemoryEvent]) -> None:
        figures: list[int | None] = []
        for event in events:
            args = event.args
            figures += (args.device_type, args.device, args.allocated, args.reserved)
        if None in figures:
            self.add([event for event in events if None not in msgspec.structs.astuple(event.args)])
        elif events:
            self._figures.append(np.array(figures, dtype=np.int64).reshape(len(events), -1))
            self._time_ns.add([event.ts for event in events])

    def finish(self) -> tuple[MemoryCounter, ...]:
        """One counter per device, accelerators first."""
        if not self._figures:
            return ()
        time_ns, figures = self._time_ns.finish(), np.concatenate(self._figures)
        in_order = np.argsort(time_ns, kind="stable")
        time_ns, figures = time_ns[in_order], figures[in_order]
        counters = []
        for kind, device in sorted(set(map(tuple, figures[:, :2].tolist()))):
            chosen = (figures[:, 0] == kind) & (figures[:, 1] == device)
            allocated, reserved = figures[chosen, 2], figures[chosen, 3]
            counters.append(MemoryCounter(time_ns[chosen], allocated, reserved, kind != _CPU_DEVICE_TYPE))
        return tuple(sorted(counters, key=lambda counter: not counter.is_accelerator))
