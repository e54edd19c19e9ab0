"""Where a rank's time goes: compute, exposed communication, copies, idle and why; per step and as a
timeline.

A step begins on the device with the first event launched after the profiler's mark on the host. Steps
follow one another without gaps, so their times add up.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import msgspec
import numpy as np

from tools.scenario.spec import ClosedModel
from tools.trace.classify import COMMUNICATION, COMPUTE, RankWork
from tools.trace.record import Coverage, RankTrace, Spans, cover, find_launches, join

_STRETCHES = 240
_WHOLE = 1000
_STEP_MARK = re.compile(r"ProfilerStep\s?#(\d{1,12})")
_WARM_UP_RATIO = 1.5
"""A leading step this much longer than the median of the later ones is warm-up."""


class BreakdownUs(ClosedModel):
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
        ratio = self.overlap_ratio
        return BreakdownUs(**in_microseconds(self), overlap_ratio=None if ratio is None else round(ratio, 6))


def in_microseconds(record: object) -> dict[str, float]:
    """The `_ns` figures of a record, in the names and units of the JSON output."""
    figures: dict[str, float] = msgspec.to_builtins(record)
    return {f"{name[:-3]}_us": ns / 1000 for name, ns in figures.items() if name.endswith("_ns")}


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

    @property
    def start_ns(self) -> int:
        return int(self.busy.start_ns[0])

    @property
    def end_ns(self) -> int:
        return int(self.busy.end_ns[-1])

    def whole(self) -> Breakdown:
        """The terms from the first event to the end of the last."""
        return self.breakdown(self.start_ns, self.end_ns) if len(self.busy.start_ns) else Breakdown()

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


def occupy(work: RankWork, launches: Spans) -> Occupancy:
    """The unions, once for all windows; a gap is the host's until its next event was launched."""
    compute, communication = work.of_class(COMPUTE).cover(), work.of_class(COMMUNICATION).cover()
    busy = work.spans.cover()
    start_ns, end_ns = busy.gaps()
    late = np.full(len(start_ns), work.basis == "host")
    unknown, host_end_ns = ~late, end_ns
    if work.basis == "device":
        order = np.argsort(work.spans.start_ns, kind="stable")
        next_event = order[np.searchsorted(work.spans.start_ns[order], end_ns)]
        found, calls = find_launches(work.spans.link[next_event], launches)
        host_end_ns = np.clip(calls.end_ns, start_ns, end_ns)
        late, unknown = found & (host_end_ns > start_ns), ~found
    return Occupancy(
        compute=compute,
        communication=communication,
        compute_or_communication=join(compute, communication),
        busy=busy,
        idle_host=cover(start_ns[late], host_end_ns[late]),
        idle_unknown=cover(start_ns[unknown], end_ns[unknown]),
    )


class Timeline(msgspec.Struct, frozen=True):
    """Shares in thousandths, one entry per stretch; the rest of a stretch is idle."""

    start_ns: int
    end_ns: int
    compute: list[int]
    exposed_communication: list[int]
    memory: list[int]


def draw_timeline(occupancy: Occupancy) -> Timeline:
    start_ns, end_ns = occupancy.start_ns, occupancy.end_ns
    edges = np.linspace(0, end_ns - start_ns, _STRETCHES + 1).astype(np.int64) + start_ns
    width = np.maximum(np.diff(edges), 1)
    compute, either, busy = (
        union.between(edges[:-1], edges[1:]) * _WHOLE // width
        for union in (occupancy.compute, occupancy.compute_or_communication, occupancy.busy)
    )
    return Timeline(start_ns, end_ns, compute.tolist(), (either - compute).tolist(), (busy - either).tolist())


@dataclass(frozen=True)
class StepProfile:
    number: int
    start_ns: int
    breakdown: Breakdown
    is_warm_up: bool = False


def measure_steps(trace: RankTrace, work: RankWork, occupancy: Occupancy) -> list[StepProfile]:
    """All steps that the trace marks and that have work of their own; empty when it marks none."""
    marks = []
    in_order = trace.annotations.take(np.argsort(trace.annotations.start_ns, kind="stable"))
    for name, first in zip(*np.unique(in_order.name, return_index=True), strict=True):
        if match := _STEP_MARK.match(trace.names[name]):
            marks.append((int(in_order.start_ns[first]), int(match.group(1))))
    if not marks or not len(work.spans):
        return []
    marks_ns, numbers = np.array(sorted(marks), dtype=np.int64).T
    found, calls = find_launches(work.spans.link, trace.launches)
    called_ns = np.where(found, calls.start_ns, work.spans.start_ns)
    step = np.searchsorted(marks_ns, called_ns, side="right") - 1
    inside, never = step >= 0, np.iinfo(np.int64).max
    starts_ns = np.full(len(marks_ns), never)
    np.minimum.at(starts_ns, step[inside], work.spans.start_ns[inside])
    used = starts_ns < never
    # Streams may reorder work across a mark; a step cannot start before the one before it.
    edges_ns = [*np.maximum.accumulate(starts_ns[used]).tolist(), occupancy.end_ns]
    steps = [
        StepProfile(number, start_ns, occupancy.breakdown(start_ns, end_ns))
        for number, start_ns, end_ns in zip(numbers[used].tolist(), edges_ns, edges_ns[1:], strict=False)
    ]
    leading = count_warm_up([step.breakdown.total_ns for step in steps])
    return [*(replace(step, is_warm_up=True) for step in steps[:leading]), *steps[leading:]]


def count_warm_up(times: Sequence[float]) -> int:
    """How many of the first steps are warm-up, by their times in any unit; two are left in any case."""
    leading = 0
    while len(times) - leading > 2 and times[leading] > _WARM_UP_RATIO * np.median(times[leading + 1 :]):
        leading += 1
    return leading


def variation_ratio(steps: list[StepProfile]) -> float | None:
    """Standard deviation over mean of the steps after warm-up; None for fewer than two."""
    times_ns = [step.breakdown.total_ns for step in steps if not step.is_warm_up]
    if len(times_ns) < 2 or not np.mean(times_ns):
        return None
    return float(np.std(times_ns) / np.mean(times_ns))
