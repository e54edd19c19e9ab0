"""What a step is made of: its time shared out to modules, ops, shapes and kernels, so that the parts add up.

Each moment belongs to one part: to the compute kernel that started first, else to a collective (exposed),
else to a copy, else to what the device waits for: the next event, which the host launched late, launched
after a synchronisation, or launched in time.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal, get_args

import msgspec
import numpy as np

from tools.scenario.spec import ClosedModel
from tools.trace.breakdown import Occupancy, StepProfile
from tools.trace.classify import COMMUNICATION, COMPUTE, MEMORY, RankWork
from tools.trace.collectives import CollectiveEvent
from tools.trace.columns import NameTable
from tools.trace.record import (
    Coverage,
    Integers,
    RankTrace,
    Spans,
    find_launches,
    match_names,
)

PartKind = Literal["kernel", "communication", "copy", "launch", "synchronisation", "waiting", "unknown"]
PART_KINDS: tuple[PartKind, ...] = get_args(PartKind)
MAX_PARTS = 1000
"""Kept of a rank; the smaller ones are summed by kind."""
MAX_MEAN_PARTS = 400
"""Kept with a report."""
REST = "(smaller parts)"
SUMMED = ("count", "own_us", "busy_us", "message_bytes")
_CLASSES = {COMPUTE: "kernel", COMMUNICATION: "communication", MEMORY: "copy"}
_SYNCHRONISES = re.compile("synchronize", re.IGNORECASE)
_STEP_MARK = "ProfilerStep"
MAX_TEXT = 160
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""The golden ratio in 64 bits, as Fibonacci hashing takes it."""
_INT64_LIMIT = 1 << 62
_LOOKS_BACK = 8
"""Finished siblings between an op and the launch inside it."""


class RankPart(msgspec.Struct, array_like=True, frozen=True):
    """One rank's events of one kind from one place, summed over its steady steps."""

    kind: str
    module: str
    op: str
    """The outermost op of the launch, and the innermost one if it is another."""
    shape: str
    """The shape of the matrix product or attention; for a collective its group."""
    kernel: str
    count: int
    own_ns: int
    """What this part adds to the steps."""
    busy_ns: int
    """Its events' durations, hidden ones included."""
    message_bytes: int


class StepPart(ClosedModel):
    """A part of the mean step of the mean rank."""

    kind: PartKind
    module: str
    op: str
    shape: str
    kernel: str
    count: float
    own_us: float
    busy_us: float
    least_us: float
    """The shortest mean of a rank: what a collective takes once all ranks are there."""
    message_bytes: float


def measure_parts(
    trace: RankTrace,
    work: RankWork,
    occupancy: Occupancy,
    steps: Sequence[StepProfile],
    collectives: Sequence[CollectiveEvent],
) -> list[RankPart]:
    """The parts of the steady steps, or of the whole trace if none are marked."""
    steady = [step for step in steps if not step.is_warm_up]
    begin_ns = steady[0].start_ns if steady else occupancy.start_ns
    spans, order = work.spans, np.argsort(work.spans.start_ns, kind="stable")
    places = _Places(trace, work, collectives)
    index: list[Integers] = []
    kinds: list[Integers] = []
    owned: list[Integers] = []
    for work_class, hidden in (
        (COMPUTE, None),
        (COMMUNICATION, occupancy.compute),
        (MEMORY, occupancy.compute_or_communication),
    ):
        events = order[work.work_class[order] == work_class]
        index.append(events)
        kinds.append(np.full(len(events), PART_KINDS.index(_CLASSES[work_class])))
        owned.append(_owned_ns(spans.take(events), hidden, begin_ns))
    counted = np.concatenate([spans.start_ns[events] >= begin_ns for events in index])
    for kind, events, own_ns in _waits(trace, work, occupancy, order, begin_ns):
        index.append(events)
        kinds.append(np.full(len(events), PART_KINDS.index(kind)))
        owned.append(own_ns)
    every, kind_of, own = (np.concatenate(part) for part in (index, kinds, owned))
    is_event = np.zeros(len(every), dtype=np.int64)
    is_event[: len(counted)] = counted
    keys = [kind_of, places.number[every], spans.name[every]]
    first, inverse = _unique_rows(keys)
    sums = [
        np.bincount(inverse, weights=weights, minlength=len(first)).astype(np.int64).tolist()
        for weights in (
            is_event,
            own,
            is_event * spans.duration_ns[every],
            is_event * places.message_bytes[every],
        )
    ]
    parts = []
    rows = zip(*(key[first].tolist() for key in keys), *sums, strict=True)
    for kind, place, name, count, own_ns, busy_ns, size in rows:
        if count or own_ns:
            module, op, shape = places.texts[place]
            kernel = trace.names[name][:MAX_TEXT]
            parts.append(RankPart(PART_KINDS[kind], module, op, shape, kernel, count, own_ns, busy_ns, size))
    parts.sort(key=lambda part: -part.own_ns)
    return [*parts[:MAX_PARTS], *_rest(parts[MAX_PARTS:])]


def _unique_rows(columns: Sequence[Integers]) -> tuple[Integers, Integers]:
    """The first of each kind of row, and of every row its kind: by a hash, since sorting rows is slow."""
    mixed = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        mixed = (mixed ^ column.astype(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(29)
    _, first, inverse = np.unique(mixed, return_index=True, return_inverse=True)
    return np.asarray(first), np.asarray(inverse)


def _rest(parts: Iterable[RankPart]) -> list[RankPart]:
    by_kind: dict[str, list[RankPart]] = defaultdict(list)
    for part in parts:
        by_kind[part.kind].append(part)
    names = ("count", "own_ns", "busy_ns", "message_bytes")
    return [
        RankPart(kind, "", "", "", REST, *(sum(getattr(part, name) for part in few) for name in names))
        for kind, few in by_kind.items()
    ]


def _owned_ns(spans: Spans, hidden: Coverage | None, begin_ns: int) -> Integers:
    """What each event, in order of start, adds to the union of those before it, less what is hidden."""
    if not len(spans):
        return spans.start_ns
    reached_ns = np.maximum(np.append(begin_ns, np.maximum.accumulate(spans.end_ns)[:-1]), begin_ns)
    start_ns = np.maximum(spans.start_ns, reached_ns)
    end_ns = np.maximum(spans.end_ns, start_ns)
    own_ns = end_ns - start_ns
    return np.asarray(own_ns if hidden is None else own_ns - hidden.between(start_ns, end_ns))


def _waits(
    trace: RankTrace, work: RankWork, occupancy: Occupancy, order: Integers, begin_ns: int
) -> list[tuple[PartKind, Integers, Integers]]:
    """The gaps of a rank by what they wait for, each with the event that ends it."""
    start_ns, end_ns = occupancy.busy.gaps()
    inside = end_ns > begin_ns
    start_ns, end_ns = np.maximum(start_ns[inside], begin_ns), end_ns[inside]
    awaited = order[np.searchsorted(work.spans.start_ns[order], end_ns)]
    if work.basis == "host":
        return [("launch", awaited, end_ns - start_ns)]
    found, calls = find_launches(work.spans.link[awaited], trace.launches)
    late_ns = np.where(found, np.clip(calls.end_ns, start_ns, end_ns) - start_ns, 0)
    rest_ns = end_ns - start_ns - late_ns
    pauses = trace.take_named(trace.launches, _SYNCHRONISES.search)
    ends_ns = np.sort(pauses.end_ns)
    # The host was held by a synchronisation that ended after the device had nothing left to do.
    after = np.searchsorted(ends_ns, start_ns, side="left")
    held = (np.searchsorted(ends_ns, np.maximum(calls.start_ns, start_ns), side="right") > after) & (
        late_ns > 0
    )
    return [
        ("synchronisation", awaited[held], late_ns[held]),
        ("launch", awaited[~held], late_ns[~held]),
        ("waiting", awaited[found], rest_ns[found]),
        ("unknown", awaited[~found], rest_ns[~found]),
    ]


class _Places:
    """Module, op and shape of every event of a rank."""

    def __init__(self, trace: RankTrace, work: RankWork, collectives: Sequence[CollectiveEvent]) -> None:
        count, is_host = len(work.spans), work.basis == "host"
        found, calls = find_launches(work.spans.link, trace.launches)
        lane = np.where(found, calls.lane, work.spans.lane)
        time_ns = np.where(found, calls.start_ns, work.spans.start_ns)
        is_step = match_names(trace.names, trace.annotations, lambda name: name.startswith(_STEP_MARK))
        marks = trace.annotations.take(~is_step)
        outer, inner = _stack(trace.stack, lane, time_ns)
        _, shaped = _stack(trace.host_ops, lane, time_ns)
        _, mark = _stack(marks, lane, time_ns)
        self.message_bytes = np.zeros(count, dtype=np.int64)
        texts, group = NameTable(), np.full(count, -1)
        for event, collective in zip(_communicating(work).tolist(), collectives, strict=False):
            self.message_bytes[event] = collective.message_bytes or 0
            group[event] = texts[f"{collective.kind} of {collective.group_key}"]
        shapes = np.full(len(trace.host_ops) + 1, -1)  # the last is for no op at all
        for op, arguments in trace.host_op_arguments.items():
            shapes[op] = texts[str(arguments.dims)[:MAX_TEXT]]

        def named(spans: Spans, positions: Integers) -> Integers:
            return np.where(positions >= 0, np.append(spans.name, -1)[positions], -1)

        columns = [
            named(marks, mark),
            *([work.spans.name] if is_host else [named(trace.stack, outer), named(trace.stack, inner)]),
            np.where(group >= 0, group, shapes[shaped]),
        ]
        known = found | is_host
        columns = [*(np.where(known, column, -1) for column in columns[:-1]), columns[-1]]
        first, self.number = _unique_rows(columns)
        names, shape_names = [*trace.names, ""], [*texts, ""]
        self.texts: list[tuple[str, str, str]] = [
            (
                names[module],
                " > ".join(filter(None, dict.fromkeys(names[op] for op in ops))),
                shape_names[shape],
            )
            for module, *ops, shape in zip(*(column[first].tolist() for column in columns), strict=True)
        ]


def _communicating(work: RankWork) -> Integers:
    """As `list_collectives` orders them."""
    positions = np.flatnonzero(work.work_class == COMMUNICATION)
    return positions[np.argsort(work.spans.start_ns[positions], kind="stable")]


def _stack(ops: Spans, lane: Integers, time_ns: Integers) -> tuple[Integers, Integers]:
    """The outermost and the innermost op around each moment; -1 for none.

    Lanes are laid end to end on one line, since a trace may have a hundred thousand of them.
    """
    nowhere = np.full(len(time_ns), -1, dtype=np.int64)
    if not len(ops) or not len(time_ns):
        return nowhere, nowhere
    lanes, lane_of = np.unique(ops.lane, return_inverse=True)
    zero_ns = min(int(ops.start_ns.min()), int(time_ns.min()))
    length_ns = max(int(ops.end_ns.max()), int(time_ns.max())) - zero_ns + 2
    if len(lanes) * length_ns >= _INT64_LIMIT:
        return nowhere, nowhere
    here = np.lexsort((-ops.end_ns, ops.start_ns, lane_of))
    offset_ns = lane_of[here] * length_ns - zero_ns
    starts_ns, ends_ns = ops.start_ns[here] + offset_ns, ops.end_ns[here] + offset_ns
    at = np.minimum(np.searchsorted(lanes, lane), len(lanes) - 1)
    moments_ns = time_ns + at * length_ns - zero_ns
    last = np.searchsorted(starts_ns, moments_ns, side="right") - 1
    tops = np.flatnonzero(starts_ns > np.append(-1, np.maximum.accumulate(ends_ns)[:-1]))
    top = tops[np.maximum(np.searchsorted(tops, last, side="right") - 1, 0)]
    is_inside = (lanes[at] == lane) & (last >= 0) & (ends_ns[top] >= moments_ns)
    chosen = np.maximum(last, 0)
    for _ in range(_LOOKS_BACK):
        ended = is_inside & (chosen > top) & (ends_ns[chosen] < moments_ns)
        chosen = np.where(ended, chosen - 1, chosen)
    outer = np.where(is_inside, here[top], -1)
    return outer, np.where(is_inside & (ends_ns[chosen] >= moments_ns), here[chosen], outer)
