"""Where a rank's time goes: compute, exposed communication, copies, idle and why; per step and as a
timeline.

A step begins on the device with the first event launched after the profiler's mark on the host. Steps
follow one another without gaps, so their times add up.
"""

import re
from dataclasses import dataclass, fields

import msgspec
import numpy as np

from tools.scenario.spec import Result
from tools.trace.classify import COMMUNICATION, COMPUTE, Work
from tools.trace.record import Coverage, Integers, RankTrace, Spans, cover, find_launches, join


class BreakdownUs(Result):
    """Device time in microseconds; compute + exposed communication + memory + idle = total."""

    compute_us: float
    communication_us: float
    exposed_communication_us: float
    memory_us: float
    idle_us: float
    total_us: float
    idle_host_us: float
    idle_waiting_us: float
    idle_unknown_us: float
    overlap_ratio: float | None
    """Share of communication hidden under compute; None without communication."""


@dataclass(frozen=True)
class Breakdown:
    """Exact times of one rank or one step."""

    compute_ns: int = 0
    communication_ns: int = 0
    exposed_communication_ns: int = 0
    memory_ns: int = 0
    idle_ns: int = 0
    total_ns: int = 0
    idle_host_ns: int = 0
    """The next launch came late."""
    idle_waiting_ns: int = 0
    """The next launch was there."""
    idle_unknown_ns: int = 0
    """The next event's launch was not captured."""

    @property
    def overlap_ratio(self) -> float | None:
        """Share of communication hidden under compute; None without communication."""
        if not self.communication_ns:
            return None
        return 1 - self.exposed_communication_ns / self.communication_ns

    def as_microseconds(self) -> BreakdownUs:
        """In the names and units of the JSON output."""
        ratio = self.overlap_ratio
        return BreakdownUs(
            compute_us=self.compute_ns / 1000,
            communication_us=self.communication_ns / 1000,
            exposed_communication_us=self.exposed_communication_ns / 1000,
            memory_us=self.memory_ns / 1000,
            idle_us=self.idle_ns / 1000,
            total_us=self.total_ns / 1000,
            idle_host_us=self.idle_host_ns / 1000,
            idle_waiting_us=self.idle_waiting_ns / 1000,
            idle_unknown_us=self.idle_unknown_ns / 1000,
            overlap_ratio=None if ratio is None else round(ratio, 6),
        )


def add_breakdowns(parts: list[Breakdown]) -> Breakdown:
    """Term by term; times of several ranks are rank-seconds."""
    return Breakdown(
        **{term.name: sum(getattr(part, term.name) for part in parts) for term in fields(Breakdown)}
    )


@dataclass(frozen=True)
class Occupancy:
    """Unions of a rank's work that answer for any window of time."""

    compute: Coverage
    communication: Coverage
    compute_or_communication: Coverage
    busy: Coverage
    idle_host: Coverage
    idle_unknown: Coverage

    def breakdown(self, start_ns: int, end_ns: int) -> Breakdown:
        """The terms inside one window."""
        compute, communication, either, busy, idle_host, idle_unknown = (
            int(getattr(self, union.name).between(start_ns, end_ns)[0]) for union in fields(self)
        )
        total_ns = end_ns - start_ns
        idle_ns = total_ns - busy
        return Breakdown(
            compute_ns=compute,
            communication_ns=communication,
            exposed_communication_ns=either - compute,
            memory_ns=busy - either,
            idle_ns=idle_ns,
            total_ns=total_ns,
            idle_host_ns=idle_host,
            idle_waiting_ns=idle_ns - idle_host - idle_unknown,
            idle_unknown_ns=idle_unknown,
        )


def occupy(work: Work, launches: Spans) -> Occupancy:
    """Builds the unions once for all windows."""
    compute = _cover_class(work, COMPUTE)
    communication = _cover_class(work, COMMUNICATION)
    busy = cover(work.spans.start_ns, work.spans.end_ns)
    idle_host, idle_unknown = _split_idle(work, busy, launches)
    return Occupancy(compute, communication, join(compute, communication), busy, idle_host, idle_unknown)


def measure(work: Work, launches: Spans) -> Breakdown:
    """The breakdown from the first event to the end of the last."""
    if not len(work.spans):
        return Breakdown()
    start_ns, end_ns = int(work.spans.start_ns.min()), int(work.spans.end_ns.max())
    return occupy(work, launches).breakdown(start_ns, end_ns)


def _cover_class(work: Work, work_class: int) -> Coverage:
    spans = work.of_class(work_class)
    return cover(spans.start_ns, spans.end_ns)


def _split_idle(work: Work, busy: Coverage, launches: Spans) -> tuple[Coverage, Coverage]:
    """The parts of the gaps that the host caused, and those without a known cause."""
    gap_start_ns, gap_end_ns = busy.gaps()
    if work.basis == "host":
        return cover(gap_start_ns, gap_end_ns), cover(gap_start_ns[:0], gap_end_ns[:0])
    order = np.argsort(work.spans.start_ns, kind="stable")
    next_event = order[np.searchsorted(work.spans.start_ns[order], gap_end_ns)]
    launched = find_launches(work.spans.link[next_event], launches)
    unknown = ~launched.found
    host_end_ns = np.clip(launched.end_ns, gap_start_ns, gap_end_ns)
    late = ~unknown & (host_end_ns > gap_start_ns)
    return cover(gap_start_ns[late], host_end_ns[late]), cover(gap_start_ns[unknown], gap_end_ns[unknown])


_STRETCHES = 240
_WHOLE = 1000


class Timeline(msgspec.Struct, frozen=True):
    """Shares in thousandths, one entry per stretch; the rest of a stretch is idle."""

    start_ns: int
    end_ns: int
    compute: list[int]
    exposed_communication: list[int]
    memory: list[int]


def draw_timeline(occupancy: Occupancy, start_ns: int, end_ns: int) -> Timeline:
    """Splits the span into stretches of equal length."""
    edges = np.linspace(0, end_ns - start_ns, _STRETCHES + 1).astype(np.int64) + start_ns
    width = np.maximum(np.diff(edges), 1)
    compute, either, busy = (
        union.between(edges[:-1], edges[1:]) * _WHOLE // width
        for union in (occupancy.compute, occupancy.compute_or_communication, occupancy.busy)
    )
    return Timeline(start_ns, end_ns, compute.tolist(), (either - compute).tolist(), (busy - either).tolist())


_STEP_MARK = re.compile(r"ProfilerStep\s?#(\d{1,12})")
_WARM_UP_RATIO = 1.5
"""A leading step this much longer than the median of the later ones is warm-up."""


@dataclass(frozen=True)
class StepProfile:
    """One step of one rank."""

    number: int
    start_ns: int
    breakdown: Breakdown
    is_warm_up: bool = False


def measure_steps(trace: RankTrace, work: Work, occupancy: Occupancy) -> list[StepProfile]:
    """All steps that the trace marks; empty when it marks none."""
    numbers, marks_ns = _find_marks(trace)
    if not len(marks_ns) or not len(work.spans):
        return []
    numbers, starts_ns = _device_starts(numbers, marks_ns, trace, work)
    ends_ns = np.append(starts_ns[1:], work.spans.end_ns.max())
    steps = [
        StepProfile(int(number), int(start), occupancy.breakdown(int(start), int(end)))
        for number, start, end in zip(numbers, starts_ns, ends_ns, strict=True)
    ]
    return _mark_warm_up(steps)


def _find_marks(trace: RankTrace) -> tuple[Integers, Integers]:
    """Numbers and host start times of the marks, in time order."""
    rows = []
    for name in np.unique(trace.annotations.name):
        match = _STEP_MARK.match(trace.names[name])
        if match:
            here = trace.annotations.name == name
            rows.append((int(trace.annotations.start_ns[here].min()), int(match.group(1))))
    table = np.array(sorted(rows), dtype=np.int64).reshape(-1, 2)
    return table[:, 1], table[:, 0]


def _device_starts(
    numbers: Integers, marks_ns: Integers, trace: RankTrace, work: Work
) -> tuple[Integers, Integers]:
    """When each step's first work started; steps without work of their own are left out."""
    owned = find_launches(work.spans.link, trace.launches)
    called_ns = np.where(owned.found, owned.start_ns, work.spans.start_ns)
    step = np.searchsorted(marks_ns, called_ns, side="right") - 1
    inside = step >= 0
    starts_ns = np.full(len(marks_ns), np.iinfo(np.int64).max)
    np.minimum.at(starts_ns, step[inside], work.spans.start_ns[inside])
    used = starts_ns < np.iinfo(np.int64).max
    # Streams may reorder work across a mark; a step cannot start before the one before it.
    return numbers[used], np.maximum.accumulate(starts_ns[used])


def _mark_warm_up(steps: list[StepProfile]) -> list[StepProfile]:
    leading = 0
    while len(steps) - leading > 2:
        later = np.median([step.breakdown.total_ns for step in steps[leading + 1 :]])
        if steps[leading].breakdown.total_ns <= _WARM_UP_RATIO * later:
            break
        leading += 1
    return [
        StepProfile(step.number, step.start_ns, step.breakdown, position < leading)
        for position, step in enumerate(steps)
    ]


def variation_ratio(steps: list[StepProfile]) -> float | None:
    """Standard deviation over mean of the steps after warm-up; None for fewer than two."""
    times_ns = [step.breakdown.total_ns for step in steps if not step.is_warm_up]
    if len(times_ns) < 2 or not np.mean(times_ns):
        return None
    return float(np.std(times_ns) / np.mean(times_ns))
