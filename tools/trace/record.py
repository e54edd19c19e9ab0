"""What is read from one rank's trace: columns of events in integer nanoseconds, with interval arithmetic and
links between events.

Every input format ends here and every analysis starts here. `UnreadableTraceError` means that one file
cannot be used.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from tools.errors import AsapError

Integers: TypeAlias = NDArray[np.int64]
NO_LINK = -1
"""Correlation of an event whose launch was not captured."""


class UnreadableTraceError(AsapError):
    """A trace file cannot be read; the message is the reason."""


@dataclass(frozen=True)
class Spans:
    """Events with start and end; `lane` is the stream or thread, `link` the correlation to the launch."""

    start_ns: Integers
    end_ns: Integers
    name: Integers
    lane: Integers
    link: Integers

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, index: Integers | NDArray[np.bool_]) -> "Spans":
        return Spans(*(column[index] for column in vars(self).values()))

    @property
    def duration_ns(self) -> Integers:
        return self.end_ns - self.start_ns

    def cover(self) -> "Coverage":
        return cover(self.start_ns, self.end_ns)


def empty_spans() -> Spans:
    return Spans(*(np.empty(0, dtype=np.int64) for _ in range(5)))


def join_spans(parts: list[Spans]) -> Spans:
    return Spans(*map(np.concatenate, zip(*(vars(part).values() for part in parts), strict=True)))


class CollectiveArguments(msgspec.Struct, gc=False, frozen=True):
    """What a trace records of one collective, as kineto writes it; None for what it does not."""

    kind: str | None = msgspec.field(default=None, name="Collective name")
    in_elements: int | None = msgspec.field(default=None, name="In msg nelems")
    out_elements: int | None = msgspec.field(default=None, name="Out msg nelems")
    group_size: int | None = msgspec.field(default=None, name="Group size")
    dtype: str | None = None
    group: str | None = msgspec.field(default=None, name="Process Group Name")
    ranks: str | None = msgspec.field(default=None, name="Process Group Ranks")


class OpArguments(msgspec.Struct, gc=False):
    """Shapes of one host op, as kineto writes them."""

    dims: list[Any] = msgspec.field(default_factory=list, name="Input Dims")
    types: list[Any] = msgspec.field(default_factory=list, name="Input type")
    concrete: list[Any] = msgspec.field(default_factory=list, name="Concrete Inputs")


@dataclass(frozen=True)
class MemoryCounter:
    """`[memory]` events of one device, in time order."""

    time_ns: Integers
    allocated_bytes: Integers
    reserved_bytes: Integers
    is_accelerator: bool


@dataclass(frozen=True)
class DistributedInfo:
    """What the file records of the job; None for what it does not."""

    rank: int | None = None
    world_size: int | None = None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    group_descriptions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """All that the analyses use of one file."""

    file: str
    names: list[str]
    device: Spans
    is_memory: NDArray[np.bool_]
    """Copies and sets among `device`."""
    device_collectives: dict[int, CollectiveArguments] = field(default_factory=dict)
    """By position in `device`."""
    launches: Spans = field(default_factory=empty_spans)
    host_ops: Spans = field(default_factory=empty_spans)
    host_op_arguments: dict[int, OpArguments] = field(default_factory=dict)
    """By position in `host_ops`, for the ops whose shapes matter."""
    stack: Spans = field(default_factory=empty_spans)
    """Every host op: what a launch was part of."""
    has_parts: bool = True
    """Whether its steps are taken apart: of the first ranks, whose like the others are."""
    host_op_collectives: dict[int, CollectiveArguments] = field(default_factory=dict)
    annotations: Spans = field(default_factory=empty_spans)
    annotation_arguments: dict[int, OpArguments] = field(default_factory=dict)
    device_annotations: Spans = field(default_factory=empty_spans)
    memory: tuple[MemoryCounter, ...] = ()
    distributed: DistributedInfo = DistributedInfo()
    device_name: str | None = None
    json_bytes: int = 0
    notes: tuple[str, ...] = ()

    def take_named(self, spans: Spans, test: Callable[[str], object]) -> Spans:
        """The events among `spans` whose name passes the test."""
        return spans.take(match_names(self.names, spans, test))


def match_names(names: list[str], spans: Spans, test: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which events have a name that passes the test."""
    verdict = np.zeros(len(names), dtype=np.bool_)
    used = np.flatnonzero(np.bincount(spans.name, minlength=len(names)))
    verdict[used] = [bool(test(names[number])) for number in used]
    return verdict[spans.name]


@dataclass(frozen=True)
class Coverage:
    """A union of intervals as disjoint, ordered segments."""

    start_ns: Integers
    end_ns: Integers
    before_ns: Integers
    """Time covered by all earlier segments."""

    @property
    def total_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum())

    def until(self, time_ns: Integers | int) -> Integers:
        """Time covered before each moment."""
        moments = np.atleast_1d(np.asarray(time_ns, dtype=np.int64))
        if not len(self.start_ns):
            return np.zeros(len(moments), dtype=np.int64)
        index = np.searchsorted(self.start_ns, moments, side="right") - 1
        inside = np.minimum(moments, self.end_ns[index]) - self.start_ns[index]
        return np.where(index < 0, 0, self.before_ns[index] + inside)

    def between(self, start_ns: Integers | int, end_ns: Integers | int) -> Integers:
        """Time covered inside each window."""
        return self.until(end_ns) - self.until(start_ns)

    def gaps(self) -> tuple[Integers, Integers]:
        """Starts and ends of what lies uncovered between segments."""
        return self.end_ns[:-1], self.start_ns[1:]


def cover(start_ns: Integers, end_ns: Integers) -> Coverage:
    """The union of the given intervals; touching ones join."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], end_ns[order]
    if not len(start_ns):
        return Coverage(start_ns, end_ns, start_ns)
    reached = np.maximum.accumulate(end_ns)
    opens = np.append(True, start_ns[1:] > reached[:-1])
    closes = np.append(opens[1:], True)
    starts, ends = start_ns[opens], reached[closes]
    lengths = ends - starts
    return Coverage(starts, ends, np.cumsum(lengths) - lengths)


def join(*coverages: Coverage) -> Coverage:
    return cover(
        np.concatenate([coverage.start_ns for coverage in coverages]),
        np.concatenate([coverage.end_ns for coverage in coverages]),
    )


def find_launches(link: Integers, launches: Spans) -> tuple[NDArray[np.bool_], Spans]:
    """Looks each correlation up: whether its launch was captured, and that launch (else any)."""
    if not len(launches):
        nothing = np.zeros(len(link), dtype=np.int64)
        return nothing.astype(np.bool_), Spans(nothing, nothing, nothing, nothing, nothing)
    order = np.argsort(launches.link, kind="stable")
    links = launches.link[order]
    index = np.minimum(np.searchsorted(links, link), len(links) - 1)
    return (links[index] == link) & (link != NO_LINK), launches.take(order[index])


def find_enclosing(spans: Spans, lane: Integers, time_ns: Integers) -> Integers:
    """Position of the span that is open on each lane at each time; -1 for none.

    Of nested spans, the one that started last; spans here rarely nest.
    """
    result = np.full(len(time_ns), -1, dtype=np.int64)
    for number in np.unique(lane):
        here = np.flatnonzero(spans.lane == number)
        queries = np.flatnonzero(lane == number)
        if not len(here):
            continue
        here = here[np.argsort(spans.start_ns[here], kind="stable")]
        index = np.searchsorted(spans.start_ns[here], time_ns[queries], side="right") - 1
        candidate = here[np.maximum(index, 0)]
        inside = (index >= 0) & (spans.end_ns[candidate] >= time_ns[queries])
        result[queries] = np.where(inside, candidate, -1)
    return result
