"""Decoded event batches gathered into columns: exact times, the arguments that analyses use, memory
counters.

Times are parsed as decimal digits: a float64 has steps of 0.25 microseconds near today's epoch.
"""

import zlib
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tools.trace.record import (
    NO_LINK,
    CollectiveArguments,
    Integers,
    MemoryCounter,
    OpArguments,
    Spans,
    UnreadableTraceError,
    empty_spans,
    join_spans,
)
from tools.trace.stream import TraceEvent

Nanoseconds: TypeAlias = NDArray[np.int64]

_SPACE, _DOT = ord(" "), ord(".")
_DECIMALS = 3
_MAX_WHOLE_DIGITS = 16
_MAX_MICROSECONDS = 9_200_000_000_000_000
"""int64 nanoseconds reach the year 2262."""


def parse_nanoseconds(texts: Sequence[bytes]) -> Nanoseconds:
    """One integer per JSON number text in microseconds."""
    if not texts:
        return np.empty(0, dtype=np.int64)
    joined = b" ".join(texts)
    fast = _parse_plain(joined, len(texts))
    return _parse_any(texts) if fast is None else fast


def _parse_plain(joined: bytes, count: int) -> Nanoseconds | None:
    """All texts at once when each is digits with at most one dot and three decimals; else None."""
    if joined.translate(None, b"0123456789. "):
        return None
    characters = np.frombuffer(joined, dtype=np.uint8)
    ends = np.append(np.flatnonzero(characters == _SPACE), len(joined))
    if len(ends) != count:
        return None
    lengths = np.diff(ends, prepend=-1) - 1
    decimals = _count_decimals(np.flatnonzero(characters == _DOT), ends)
    whole_digits = lengths - decimals
    if lengths.min() < 1 or decimals.max() > _DECIMALS or whole_digits.max() > _MAX_WHOLE_DIGITS + 1:
        return None
    values = np.fromstring(joined.replace(b".", b""), dtype=np.int64, sep=" ")
    if (values > _MAX_MICROSECONDS * 10**decimals).any():
        return None
    return np.asarray(values * 10 ** (_DECIMALS - decimals), dtype=np.int64)


def _count_decimals(dots: Nanoseconds, ends: Nanoseconds) -> Nanoseconds:
    decimals = np.zeros(len(ends), dtype=np.int64)
    owners = np.searchsorted(ends, dots)
    decimals[owners] = ends[owners] - dots - 1
    return decimals


def _parse_any(texts: Sequence[bytes]) -> Nanoseconds:
    return np.array([_parse_one(bytes(text)) for text in texts], dtype=np.int64)


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


class StreamArguments(msgspec.Struct, gc=False):
    """Arguments of kernels, copies and sets."""

    stream: int | None = None
    correlation: int | None = None


class CollectiveDescription(msgspec.Struct, gc=False):
    """Arguments of kernels that communicate and of `record_param_comms`."""

    collective: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: int | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    dtype: str | None = None
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")


class LaunchArguments(msgspec.Struct, gc=False):
    """Arguments of calls into the device runtime."""

    correlation: int | None = None


class ShapeArguments(msgspec.Struct, gc=False):
    """Arguments of host ops."""

    dims: list[Any] | None = msgspec.field(default=None, name="Input Dims")
    types: list[Any] | None = msgspec.field(default=None, name="Input type")
    concrete: list[Any] | None = msgspec.field(default=None, name="Concrete Inputs")


class MemoryArguments(msgspec.Struct, gc=False):
    """Arguments of `[memory]` events."""

    device_type: int | None = msgspec.field(default=None, name="Device Type")
    device: int | None = msgspec.field(default=None, name="Device Id")
    allocated: int | None = msgspec.field(default=None, name="Total Allocated")
    reserved: int | None = msgspec.field(default=None, name="Total Reserved")


Form = TypeVar("Form", bound=msgspec.Struct)


def decode_arguments(raw: Sequence[bytes], form: type[Form]) -> list[Form]:
    """One record per text, in order."""
    joined = b"[" + b",".join(raw) + b"]"
    try:
        return msgspec.json.decode(joined, type=list[form])  # type: ignore[valid-type]
    except msgspec.ValidationError:
        return [_coerce(item, form) for item in msgspec.json.decode(joined)]


def _coerce(item: object, form: type[Form]) -> Form:
    known = item if isinstance(item, dict) else {}
    fitting: dict[str, Any] = {}
    for field in msgspec.structs.fields(form):
        try:
            fitting[field.name] = msgspec.convert(known.get(field.encode_name), field.type, strict=False)
        except msgspec.ValidationError:
            continue
    return form(**fitting)


def as_links(correlations: list[int | None]) -> Integers:
    """Correlations as a column; absent or absurd ones are no link."""
    try:
        return np.array(correlations, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array(
            [NO_LINK if link is None else _bounded(link, NO_LINK) for link in correlations], dtype=np.int64
        )


def as_lanes(tracks: Sequence[object]) -> Integers:
    """Streams or threads as a column; texts become numbers of their own."""
    try:
        return np.array(tracks, dtype=np.int64)
    except (TypeError, ValueError, OverflowError):
        return np.array([_as_lane(track) for track in tracks], dtype=np.int64)


def _as_lane(track: object) -> int:
    if isinstance(track, str):
        return zlib.crc32(track.encode("utf-8", "replace"))
    return _bounded(int(track), 0) if isinstance(track, int | float) and abs(track) < _INT64_LIMIT else 0


def _bounded(value: int, otherwise: int) -> int:
    return value if abs(value) < _INT64_LIMIT else otherwise


def any_collective(texts: Sequence[bytes]) -> bool:
    """Whether any of the texts may describe a collective."""
    joined = b"".join(texts)
    return b'"Collective name"' in joined or b'"Process Group Name"' in joined


def is_collective(arguments: CollectiveDescription) -> bool:
    """Whether the event carries a collective's description."""
    return arguments.collective is not None or arguments.group is not None


def as_collective(arguments: CollectiveDescription) -> CollectiveArguments:
    """The description in our terms."""
    return CollectiveArguments(
        kind=arguments.collective,
        group=arguments.group,
        ranks=parse_ranks(arguments.ranks),
        group_size=arguments.group_size,
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
        types=tuple(str(dtype) for dtype in arguments.types or ()),
        concrete=tuple(str(value) for value in arguments.concrete or ()),
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


def check_times(start_ns: Integers, duration_ns: Integers, names: Sequence[str]) -> None:
    """Raises UnreadableTraceError if arithmetic on the times would overflow or go backwards."""
    for what, wrong, how in (
        ("duration", duration_ns < 0, "negative"),
        ("duration", duration_ns > _MAX_DURATION_NS, "out of range"),
        ("start", start_ns < -_MAX_DURATION_NS, "out of range"),
    ):
        if wrong.any():
            raise UnreadableTraceError(f"the {what} of {names[int(wrong.argmax())][:60]!r} is {how}")


class NameTable(dict[str, int]):
    """Numbers names in the order they are first seen."""

    def __missing__(self, name: str) -> int:
        number = len(self)
        self[name] = number
        return number

    def number(self, names: Sequence[str]) -> Integers:
        """The number of each name."""
        return np.array([self[name] for name in names], dtype=np.int64)


class SpanColumns:
    """Grows by batches, ends as one `Spans`."""

    def __init__(self, names: NameTable) -> None:
        self.length = 0
        self._names = names
        self._parts: list[Spans] = []

    def add(self, events: Sequence[TraceEvent], lanes: Integers, links: Integers | None = None) -> None:
        """Appends events; `links` default to none."""
        # One call for both: most batches are short, and a call costs more than its numbers.
        times_ns = parse_nanoseconds([event.ts for event in events] + [event.dur for event in events])
        start_ns, duration_ns = times_ns[: len(events)], times_ns[len(events) :]
        names = [event.name for event in events]
        check_times(start_ns, duration_ns, names)
        link = np.full(len(events), NO_LINK) if links is None else links
        numbers = self._names.number(names)
        self._parts.append(Spans(start_ns, start_ns + duration_ns, numbers, lanes, link))
        self.length += len(events)

    def finish(self) -> Spans:
        """All events added, in file order."""
        if not self._parts:
            return empty_spans()
        return join_spans(self._parts)


_CPU_DEVICE_TYPE = 0
"""c10::DeviceType of the host; every other number is an accelerator."""


class MemoryColumns:
    """Grows by batches; events that lack totals are left out."""

    def __init__(self) -> None:
        self._parts: list[Integers] = []

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Appends the events of one batch."""
        decoded = decode_arguments([event.args for event in events], MemoryArguments)
        rows = [(event.device_type, event.device, event.allocated, event.reserved) for event in decoded]
        complete = [position for position, row in enumerate(rows) if None not in row]
        if complete:
            time_ns = parse_nanoseconds([events[position].ts for position in complete])
            figures = np.array([rows[position] for position in complete], dtype=np.int64).T
            self._parts.append(np.vstack([time_ns, figures]))

    def finish(self) -> tuple[MemoryCounter, ...]:
        """One counter per device, accelerators first."""
        if not self._parts:
            return ()
        columns = np.concatenate(self._parts, axis=1)
        columns = columns[:, np.argsort(columns[0], kind="stable")]
        devices = sorted(set(zip(columns[1].tolist(), columns[2].tolist(), strict=True)))
        counters = [_counter(columns, kind, device) for kind, device in devices]
        return tuple(sorted(counters, key=lambda counter: not counter.is_accelerator))


def _counter(columns: Integers, kind: int, device: int) -> MemoryCounter:
    time_ns, _, _, allocated, reserved = columns[:, (columns[1] == kind) & (columns[2] == device)]
    return MemoryCounter(time_ns, allocated, reserved, is_accelerator=kind != _CPU_DEVICE_TYPE)
