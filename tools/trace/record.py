"""What is read from one rank's trace: columns of events in integer nanoseconds, with interval arithmetic and
links between events.

Every input format ends here and every analysis starts here. `UnreadableTraceError` means that one file
cannot be used.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tools.errors import AsapError


class UnreadableTraceError(AsapError):
    """A trace file cannot be read; the message is the reason."""


Integers: TypeAlias = NDArray[np.int64]

NO_LINK = -1
"""Correlation of an event whose launch was not captured."""


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
        """The events chosen by a mask or by positions."""
        columns = (self.start_ns, self.end_ns, self.name, self.lane, self.link)
        return Spans(*(column[index] for column in columns))

    @property
    def duration_ns(self) -> Integers:
        return self.end_ns - self.start_ns


def empty_spans() -> Spans:
    """No events."""
    return Spans(*(np.empty(0, dtype=np.int64) for _ in range(5)))


def join_spans(parts: list[Spans]) -> Spans:
    """One after the other."""
    columns = ("start_ns", "end_ns", "name", "lane", "link")
    return Spans(*(np.concatenate([getattr(part, column) for part in parts]) for column in columns))


@dataclass(frozen=True)
class CollectiveArguments:
    """What a trace records of one collective; None for what it does not."""

    kind: str | None = None
    group: str | None = None
    ranks: tuple[int, ...] | None = None
    group_size: int | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    dtype: str | None = None


@dataclass(frozen=True)
class OpArguments:
    """Shapes of one host op, as the profiler wrote them."""

    dims: tuple[Any, ...]
    types: tuple[str, ...]
    concrete: tuple[str, ...]


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


@dataclass(frozen=True)
class RankTrace:
    """All that the analyses use of one file."""

    file: str
    names: list[str]
    device: Spans
    is_memory: NDArray[np.bool_]
    """Copies and sets among `device`."""
    device_collectives: dict[int, CollectiveArguments]
    """By position in `device`."""
    launches: Spans
    host_ops: Spans
    host_op_arguments: dict[int, OpArguments]
    """By position in `host_ops`, for the ops whose shapes matter."""
    host_op_collectives: dict[int, CollectiveArguments]
    annotations: Spans
    annotation_arguments: dict[int, OpArguments]
    device_annotations: Spans
    memory: tuple[MemoryCounter, ...]
    distributed: DistributedInfo
    device_name: str | None
    json_bytes: int = 0
    notes: tuple[str, ...] = ()


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
    """The union of several coverages."""
    return cover(
        np.concatenate([coverage.start_ns for coverage in coverages]),
        np.concatenate([coverage.end_ns for coverage in coverages]),
    )


@dataclass(frozen=True)
class FoundLaunches:
    """The launch of each event; only entries with `found` mean anything."""

    found: NDArray[np.bool_]
    start_ns: Integers
    end_ns: Integers
    lane: Integers
    """The host thread."""


def find_launches(link: Integers, launches: Spans) -> FoundLaunches:
    """Looks each correlation up among the launches."""
    if not len(launches):
        nothing = np.zeros(len(link), dtype=np.int64)
        return FoundLaunches(nothing.astype(np.bool_), nothing, nothing, nothing)
    order = np.argsort(launches.link, kind="stable")
    links = launches.link[order]
    index = np.minimum(np.searchsorted(links, link), len(links) - 1)
    found = (links[index] == link) & (link != NO_LINK)
    chosen = order[index]
    return FoundLaunches(found, launches.start_ns[chosen], launches.end_ns[chosen], launches.lane[chosen])


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
