"""What is read from one rank's trace: columns of events, in integer nanoseconds.

Every input format (kineto JSON, Nsight SQLite, XPlane) ends here, and every analysis starts here. Events of
one sort share a `Spans`; a name is an index into `RankTrace.names`. Not here: any judgement of the events,
except the class of a device event, which `classify.py` fills in.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

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
    return Spans(*(np.concatenate([getattr(part, one) for part in parts]) for one in columns))


@dataclass(frozen=True)
class CollectiveArguments:
    """What a trace says of one collective; None where it does not."""

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
    """What the file says of the job; None where it does not."""

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
