"""Every collective of one rank with kind, group and size, and the time per group with its exposed part."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Annotated, Any

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
    """One collective as one rank saw it; None where the trace does not tell."""

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
        """Ranks identify a group everywhere; a name only where no two groups share it."""
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
    trace: RankTrace,
    work: Work,
    occupancy: Occupancy,
    loading: Coverage,
    patterns: CommunicationPatterns,
) -> list[CollectiveEvent]:
    """In order of their start."""
    positions = np.flatnonzero(work.work_class == COMMUNICATION)
    positions = positions[np.argsort(work.spans.start_ns[positions], kind="stable")]
    starts_ns, ends_ns = work.spans.start_ns[positions], work.spans.end_ns[positions]
    free_ns = _free_since(starts_ns, ends_ns)
    before = [one.between(free_ns, starts_ns) for one in (occupancy.compute, occupancy.idle_host, loading)]
    described = _describe(trace, work, positions, patterns)
    columns = zip(
        described, starts_ns.tolist(), ends_ns.tolist(), *(one.tolist() for one in before), strict=True
    )
    return [CollectiveEvent(*what, *times) for what, *times in columns]


def _free_since(starts_ns: Integers, ends_ns: Integers) -> Integers:
    """End of the collective before each; the first one's own start, as nothing is known before it."""
    if not len(starts_ns):
        return starts_ns
    reached = np.maximum.accumulate(ends_ns)
    return np.asarray(np.minimum(np.append(starts_ns[:1], reached[:-1]), starts_ns))


def _describe(
    trace: RankTrace, work: Work, positions: Integers, patterns: CommunicationPatterns
) -> list[tuple[Any, ...]]:
    """Kind, group, ranks, group size and bytes of each."""
    names = [trace.names[number] for number in work.spans.name[positions]]
    found = _find_arguments(trace, work, positions, names)
    return [_summarise(trace, *one, name, patterns) for one, name in zip(found, names, strict=True)]


def _find_arguments(
    trace: RankTrace, work: Work, positions: Integers, names: list[str]
) -> list[tuple[CollectiveArguments | None, OpArguments | None, str]]:
    if work.basis == "host":
        marked = (trace.annotation_arguments.get(origin) for origin in work.origin[positions].tolist())
        return [(None, shapes, name) for shapes, name in zip(marked, names, strict=True)]
    launched = find_launches(work.spans.link[positions], trace.launches)
    ops = _enclosing(trace, trace.host_ops, lambda name: name == COLLECTIVE_OP, launched)
    marks = _enclosing(trace, trace.annotations, is_shaped_annotation, launched)
    result = []
    for position, op, mark, name in zip(positions.tolist(), ops, marks, names, strict=True):
        arguments = trace.device_collectives.get(position) or trace.host_op_collectives.get(op)
        shapes = trace.host_op_arguments.get(op) or trace.annotation_arguments.get(mark)
        told = trace.names[trace.annotations.name[mark]] if mark >= 0 else name
        result.append((arguments, shapes, told))
    return result


def _enclosing(
    trace: RankTrace, spans: Spans, is_wanted: Callable[[str], bool], launched: FoundLaunches
) -> list[int]:
    """Position in `spans` of the wanted one around each launch; -1 for none."""
    chosen = np.append(np.flatnonzero(match_names(trace.names, spans, is_wanted)), -1)
    found = find_enclosing(spans.take(chosen[:-1]), launched.lane, launched.start_ns)
    return [int(one) for one in np.where(launched.found, chosen[found], -1)]


def _summarise(
    trace: RankTrace,
    arguments: CollectiveArguments | None,
    shapes: OpArguments | None,
    told: str,
    name: str,
    patterns: CommunicationPatterns,
) -> tuple[Any, ...]:
    known = arguments or CollectiveArguments()
    kind = patterns.find_kind(known.kind or told)
    ranks = known.ranks or trace.distributed.groups.get(known.group or "")
    group_size = known.group_size or (len(ranks) if ranks else None) or trace.distributed.world_size
    message_bytes = _message_bytes(kind, known, name, group_size)
    if message_bytes is None and shapes is not None:
        message_bytes = _shape_bytes(kind, shapes, name, group_size)
    if message_bytes is not None and message_bytes > _MAX_BYTES:
        message_bytes = None
    return kind, known.group, ranks, group_size, message_bytes


def _message_bytes(kind: str, known: CollectiveArguments, name: str, group_size: int | None) -> int | None:
    """The size that bandwidth is reckoned with: the larger side of a gather or scatter (nccl-tests)."""
    element_bytes = find_element_bytes(known.dtype or name)
    if element_bytes is None or (known.in_elements is None and known.out_elements is None):
        return None
    given, gained = known.in_elements or 0, known.out_elements or 0
    if kind == "all_gather":
        gained = max(gained, given * (group_size or 1))
    return max(given, gained) * element_bytes


def _shape_bytes(kind: str, shapes: OpArguments, name: str, group_size: int | None) -> int | None:
    element_bytes = next((size for one in shapes.types if (size := find_element_bytes(one))), None)
    element_bytes = element_bytes or find_element_bytes(name)
    elements = count_elements(shapes.dims[0])
    if element_bytes is None or not elements:
        return None
    return elements * element_bytes * ((group_size or 1) if kind == "all_gather" else 1)


def count_elements(dims: object) -> int | None:
    """Of one tensor, or of all tensors of a list; None for anything else."""
    if not isinstance(dims, list) or not dims:
        return None
    tensors = dims if isinstance(dims[0], list) else [dims]
    total = sum(math.prod(one) for one in tensors if is_shape(one))
    return total if 0 < total < _MAX_ELEMENTS else None


def is_shape(dims: object) -> bool:
    """A list of sizes small enough to multiply."""
    return (
        isinstance(dims, list)
        and len(dims) <= _MAX_AXES
        and all(type(one) is int and 0 <= one < _MAX_ELEMENTS for one in dims)
    )


class GroupTime(msgspec.Struct, frozen=True):
    """All collectives of one kind in one group."""

    kind: str
    group_key: str
    group: str | None
    """The process group's name, where the trace has one."""
    ranks: tuple[int, ...] | None
    time_ns: int
    """Summed over the collectives."""
    exposed_ns: int
    """No computing beside; times of groups may overlap each other."""


def time_groups(collectives: list[CollectiveEvent], compute: Coverage) -> list[GroupTime]:
    """One entry per kind and group, in order of appearance."""
    sorted_out: dict[tuple[str, str], list[CollectiveEvent]] = defaultdict(list)
    for one in collectives:
        sorted_out[one.kind, one.group_key].append(one)
    return [
        GroupTime(
            kind=kind,
            group_key=key,
            group=events[0].group,
            ranks=events[0].ranks,
            time_ns=sum(event.duration_ns for event in events),
            exposed_ns=_exposed_ns(events, compute),
        )
        for (kind, key), events in sorted_out.items()
    ]


def time_exposed_kinds(collectives: list[CollectiveEvent], compute: Coverage) -> dict[str, int]:
    """Nanoseconds of each kind with no computing beside it, over all groups; kinds may overlap each other."""
    sorted_out: dict[str, list[CollectiveEvent]] = defaultdict(list)
    for one in collectives:
        sorted_out[one.kind].append(one)
    return {kind: _exposed_ns(events, compute) for kind, events in sorted_out.items()}


def _exposed_ns(events: list[CollectiveEvent], compute: Coverage) -> int:
    starts_ns = np.array([event.start_ns for event in events], dtype=np.int64)
    ends_ns = np.array([event.end_ns for event in events], dtype=np.int64)
    return join(compute, cover(starts_ns, ends_ns)).total_ns - compute.total_ns
