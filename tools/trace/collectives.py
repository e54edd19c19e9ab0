"""Which collectives a rank ran: kind, group and size of each, and per group the time and its exposed part."""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from tools.trace.breakdown import Occupancy
from tools.trace.classify import (
    COLLECTIVE_OP,
    COMMUNICATION,
    CommunicationPatterns,
    Work,
    find_element_bytes,
    is_shaped_annotation,
)
from tools.trace.record import (
    CollectiveArguments,
    Coverage,
    FoundLaunches,
    Integers,
    OpArguments,
    RankTrace,
    Spans,
    cover,
    find_enclosing,
    find_launches,
    join,
    match_names,
)

_MAX_ELEMENTS = 1 << 44
_MAX_AXES = 16
_MAX_BYTES = 1 << 62
"""Larger sizes are nonsense, and a summary could not hold them."""
Moment = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""Nanoseconds whose differences fit into int64: a summary may come from anywhere."""


class CollectiveEvent(msgspec.Struct, array_like=True, frozen=True):
    """One collective as one rank saw it; None for what the trace does not record."""

    kind: str
    group: str | None
    ranks: tuple[int, ...] | None
    group_size: int | None
    message_bytes: int | None
    start_ns: Moment
    end_ns: Moment
    before_compute_ns: int
    """Compute time since the collective before it ended."""
    before_host_ns: int
    """Idle time in that span that the host caused."""
    before_loader_ns: int
    """Data loading in that span."""

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def group_key(self) -> str:
        """Ranks identify a group in every trace; a name only if no two groups share it."""
        if self.ranks is not None:
            return f"ranks {_shorten(self.ranks)}"
        return f"group {self.group}" if self.group is not None else "group not recorded"


def _shorten(ranks: tuple[int, ...]) -> str:
    steps = set(np.diff(ranks).tolist())
    if len(ranks) > 2 and len(steps) == 1:
        step = steps.pop()
        return f"{ranks[0]}-{ranks[-1]}" + (f" step {step}" if step != 1 else "")
    return ",".join(str(rank) for rank in ranks)


def list_collectives(
    trace: RankTrace, work: Work, occupancy: Occupancy, loading: Coverage, patterns: CommunicationPatterns
) -> list[CollectiveEvent]:
    """In order of their start."""
    positions = np.flatnonzero(work.work_class == COMMUNICATION)
    positions = positions[np.argsort(work.spans.start_ns[positions], kind="stable")]
    starts_ns, ends_ns = work.spans.start_ns[positions], work.spans.end_ns[positions]
    free_ns = _free_since(starts_ns, ends_ns)
    before = [
        activity.between(free_ns, starts_ns).tolist()
        for activity in (occupancy.compute, occupancy.idle_host, loading)
    ]
    records = _find_records(trace, work, positions)
    find_kind = cache(patterns.find_kind)  # few names, many events
    rows = zip(records, starts_ns.tolist(), ends_ns.tolist(), *before, strict=True)
    return [CollectiveEvent(*_describe(trace, recorded, find_kind), *times) for recorded, *times in rows]


def _free_since(starts_ns: Integers, ends_ns: Integers) -> Integers:
    """End of the collective before each; the first one's own start, as nothing is known before it."""
    if not len(starts_ns):
        return starts_ns
    reached = np.maximum.accumulate(ends_ns)
    return np.asarray(np.minimum(np.append(starts_ns[:1], reached[:-1]), starts_ns))


class _Recorded(NamedTuple):
    """What the trace records of one collective."""

    name: str
    """Of the kernel, or of the host's span."""
    title: str
    """The name that is most likely to contain the kind."""
    arguments: CollectiveArguments | None
    shapes: OpArguments | None


class _Description(NamedTuple):
    """The first fields of `CollectiveEvent`."""

    kind: str
    group: str | None
    ranks: tuple[int, ...] | None
    group_size: int | None
    message_bytes: int | None


def _find_records(trace: RankTrace, work: Work, positions: Integers) -> list[_Recorded]:
    names = [trace.names[number] for number in work.spans.name[positions]]
    if work.basis == "host":
        marked = (trace.annotation_arguments.get(origin) for origin in work.origin[positions].tolist())
        return [_Recorded(name, name, None, shapes) for name, shapes in zip(names, marked, strict=True)]
    launched = find_launches(work.spans.link[positions], trace.launches)
    ops = _enclosing(trace, trace.host_ops, lambda name: name == COLLECTIVE_OP, launched)
    marks = _enclosing(trace, trace.annotations, is_shaped_annotation, launched)
    records = []
    for position, op, mark, name in zip(positions.tolist(), ops, marks, names, strict=True):
        arguments = trace.device_collectives.get(position) or trace.host_op_collectives.get(op)
        shapes = trace.host_op_arguments.get(op) or trace.annotation_arguments.get(mark)
        title = trace.names[trace.annotations.name[mark]] if mark >= 0 else name
        records.append(_Recorded(name, title, arguments, shapes))
    return records


def _enclosing(
    trace: RankTrace, spans: Spans, is_wanted: Callable[[str], bool], launched: FoundLaunches
) -> list[int]:
    """Position in `spans` of the wanted one around each launch; -1 for none."""
    chosen = np.append(np.flatnonzero(match_names(trace.names, spans, is_wanted)), -1)
    enclosing = find_enclosing(spans.take(chosen[:-1]), launched.lane, launched.start_ns)
    return [int(position) for position in np.where(launched.found, chosen[enclosing], -1)]


def _describe(trace: RankTrace, recorded: _Recorded, find_kind: Callable[[str], str]) -> _Description:
    known = recorded.arguments or CollectiveArguments()
    kind = find_kind(known.kind or recorded.title)
    ranks = known.ranks or trace.distributed.groups.get(known.group or "")
    group_size = known.group_size or (len(ranks) if ranks else None) or trace.distributed.world_size
    message_bytes = _message_bytes(kind, known, recorded.name, group_size)
    if message_bytes is None and recorded.shapes is not None:
        message_bytes = _shape_bytes(kind, recorded.shapes, recorded.name, group_size)
    if message_bytes is not None and message_bytes > _MAX_BYTES:
        message_bytes = None
    return _Description(kind, known.group, ranks, group_size, message_bytes)


def _message_bytes(kind: str, known: CollectiveArguments, name: str, group_size: int | None) -> int | None:
    """The size that bandwidth is computed from: the larger side of a gather or scatter (nccl-tests)."""
    element_bytes = find_element_bytes(known.dtype or name)
    if element_bytes is None or (known.in_elements is None and known.out_elements is None):
        return None
    sent, received = known.in_elements or 0, known.out_elements or 0
    if kind == "all_gather":
        received = max(received, sent * (group_size or 1))
    return max(sent, received) * element_bytes


def _shape_bytes(kind: str, shapes: OpArguments, name: str, group_size: int | None) -> int | None:
    element_bytes = next((size for dtype in shapes.types if (size := find_element_bytes(dtype))), None)
    element_bytes = element_bytes or find_element_bytes(name)
    elements = count_elements(shapes.dims[0])
    if element_bytes is None or not elements:
        return None
    return elements * element_bytes * ((group_size or 1) if kind == "all_gather" else 1)


def count_elements(dims: object) -> int | None:
    """Elements of one tensor, or of all tensors of a list; None for anything else."""
    if not isinstance(dims, list) or not dims:
        return None
    tensors = dims if isinstance(dims[0], list) else [dims]
    total = sum(math.prod(shape) for shape in tensors if is_shape(shape))
    return total if 0 < total < _MAX_ELEMENTS else None


def is_shape(dims: object) -> bool:
    """A list of sizes small enough to multiply."""
    return (
        isinstance(dims, list)
        and len(dims) <= _MAX_AXES
        and all(type(size) is int and 0 <= size < _MAX_ELEMENTS for size in dims)
    )


class GroupTime(msgspec.Struct, frozen=True):
    """All collectives of one kind in one group."""

    kind: str
    group_key: str
    group: str | None
    """The process group's name, if the trace has one."""
    ranks: tuple[int, ...] | None
    time_ns: int
    """Summed over the collectives."""
    exposed_ns: int
    """Without concurrent compute; times of groups may overlap each other."""


def time_groups(collectives: list[CollectiveEvent], compute: Coverage) -> list[GroupTime]:
    """One entry per kind and group, in order of appearance."""
    by_group: dict[tuple[str, str], list[CollectiveEvent]] = defaultdict(list)
    for event in collectives:
        by_group[event.kind, event.group_key].append(event)
    return [
        GroupTime(
            kind=kind,
            group_key=key,
            group=events[0].group,
            ranks=events[0].ranks,
            time_ns=sum(event.duration_ns for event in events),
            exposed_ns=_exposed_ns(events, compute),
        )
        for (kind, key), events in by_group.items()
    ]


def time_exposed_kinds(collectives: list[CollectiveEvent], compute: Coverage) -> dict[str, int]:
    """Nanoseconds of each kind without concurrent compute, over all groups; kinds may overlap each other."""
    by_kind: dict[str, list[CollectiveEvent]] = defaultdict(list)
    for event in collectives:
        by_kind[event.kind].append(event)
    return {kind: _exposed_ns(events, compute) for kind, events in by_kind.items()}


def _exposed_ns(events: list[CollectiveEvent], compute: Coverage) -> int:
    starts_ns = np.array([event.start_ns for event in events], dtype=np.int64)
    ends_ns = np.array([event.end_ns for event in events], dtype=np.int64)
    return join(compute, cover(starts_ns, ends_ns)).total_ns - compute.total_ns
