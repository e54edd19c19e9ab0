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
    RankWork,
    find_element_bytes,
    is_shaped_annotation,
)
from tools.trace.record import (
    CollectiveArguments,
    Coverage,
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
_MAX_RANKS = 1 << 20
_INT64_LIMIT = 1 << 62
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
        ranks = self.ranks
        if ranks is None:
            return f"group {self.group}" if self.group is not None else "group not recorded"
        steps = set(np.diff(ranks).tolist())
        if len(ranks) > 2 and len(steps) == 1:
            step = steps.pop()
            return f"ranks {ranks[0]}-{ranks[-1]}" + (f" step {step}" if step != 1 else "")
        return f"ranks {','.join(map(str, ranks))}"


class _Recorded(NamedTuple):
    """What the trace records of one collective."""

    name: str
    """The name of the kernel, or of the host's span."""
    title: str
    """The name that is most likely to contain the kind."""
    arguments: CollectiveArguments
    shapes: OpArguments | None


def list_collectives(
    trace: RankTrace, work: RankWork, occupancy: Occupancy, loading: Coverage, patterns: CommunicationPatterns
) -> list[CollectiveEvent]:
    """In order of their start."""
    positions = np.flatnonzero(work.work_class == COMMUNICATION)
    positions = positions[np.argsort(work.spans.start_ns[positions], kind="stable")]
    starts_ns, ends_ns = work.spans.start_ns[positions], work.spans.end_ns[positions]
    # The end of the collective before each; the first one's own start, as nothing is known before it.
    reached_ns = np.append(starts_ns[:1], np.maximum.accumulate(ends_ns)[:-1])
    free_ns = np.minimum(reached_ns, starts_ns)
    before = [
        activity.between(free_ns, starts_ns).tolist()
        for activity in (occupancy.compute, occupancy.idle_host, loading)
    ]
    find_kind, parse_ranks = cache(patterns.find_kind), cache(_parse_ranks)  # few names, many events
    events = []
    rows = zip(
        _find_records(trace, work, positions), starts_ns.tolist(), ends_ns.tolist(), *before, strict=True
    )
    for recorded, *times in rows:
        known = recorded.arguments
        kind = find_kind(known.kind or recorded.title)
        ranks = parse_ranks(known.ranks) or trace.distributed.groups.get(known.group or "")
        group_size = _count(known.group_size) or len(ranks or ()) or trace.distributed.world_size
        size_bytes = _message_bytes(kind, recorded, group_size)
        events.append(CollectiveEvent(kind, known.group, ranks, group_size, size_bytes, *times))
    return events


def _find_records(trace: RankTrace, work: RankWork, positions: Integers) -> list[_Recorded]:
    names = [trace.names[number] for number in work.spans.name[positions]]
    nothing = CollectiveArguments()
    if work.basis == "host":
        marked = (trace.annotation_arguments.get(origin) for origin in work.origin[positions].tolist())
        return [_Recorded(name, name, nothing, shapes) for name, shapes in zip(names, marked, strict=True)]
    found, launched = find_launches(work.spans.link[positions], trace.launches)

    def enclosing(spans: Spans, is_wanted: Callable[[str], bool]) -> list[int]:
        """Position in `spans` of the wanted one around each launch; -1 for none."""
        chosen = np.append(np.flatnonzero(match_names(trace.names, spans, is_wanted)), -1)
        around = find_enclosing(spans.take(chosen[:-1]), launched.lane, launched.start_ns)
        return [int(position) for position in np.where(found, chosen[around], -1)]

    ops = enclosing(trace.host_ops, lambda name: name == COLLECTIVE_OP)
    marks = enclosing(trace.annotations, is_shaped_annotation)
    records = []
    for position, op, mark, name in zip(positions.tolist(), ops, marks, names, strict=True):
        arguments = trace.device_collectives.get(position) or trace.host_op_collectives.get(op) or nothing
        shapes = trace.host_op_arguments.get(op) or trace.annotation_arguments.get(mark)
        title = trace.names[trace.annotations.name[mark]] if mark >= 0 else name
        records.append(_Recorded(name, title, arguments, shapes))
    return records


def _message_bytes(kind: str, recorded: _Recorded, group_size: int | None) -> int | None:
    """The size that bandwidth is computed from: the larger side of a gather or scatter (nccl-tests)."""
    known, shapes, gathered = recorded.arguments, recorded.shapes, kind == "all_gather"
    element_bytes = find_element_bytes(known.dtype or recorded.name)
    elements = None
    sent, received = _count(known.in_elements), _count(known.out_elements)
    if element_bytes is not None and (sent is not None or received is not None):
        elements = max(received or 0, (sent or 0) * ((group_size or 1) if gathered else 1))
    elif shapes is not None:
        sizes = map(find_element_bytes, map(str, shapes.types))
        element_bytes = next(filter(None, sizes), None) or find_element_bytes(recorded.name)
        elements = (count_elements(shapes.dims[0]) or 0) * ((group_size or 1) if gathered else 1) or None
    if element_bytes is None or elements is None or elements * element_bytes > _INT64_LIMIT:
        return None
    return elements * element_bytes


def _count(number: int | None) -> int | None:
    """Numbers that no job has count as absent."""
    return number if number is not None and 0 <= number < _INT64_LIMIT else None


def _parse_ranks(text: str | None) -> tuple[int, ...] | None:
    """`"[0, 1]"` to numbers; None for an abbreviated or strange list."""
    if not text or "..." in text:
        return None
    try:
        ranks = msgspec.json.decode(text.encode(), type=list[int])
    except msgspec.DecodeError:
        return None
    return tuple(ranks) if 0 < len(ranks) <= _MAX_RANKS else None


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
