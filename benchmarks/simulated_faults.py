"""Simulated faults in real traces: a late host, a slow device, a slow link, put into recorded timelines.

A simulation, not a recording: the kernels and gaps of a real trace are moved in time as the fault would
move them. Between two collectives a rank keeps its own work; a collective ends for all ranks at once, when
the last one has arrived and the data has been moved.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tools.trace.classify import COMMUNICATION, COMPUTE, CommunicationPatterns, classify
from tools.trace.rank_profile import RankProfile, profile_rank
from tools.trace.record import Integers, RankTrace, Spans, cover, find_launches

LAUNCH_AHEAD_NS = 1000
"""How long before its kernel a late host finishes a launch."""


KERNELS_PER_CUT = 40


@dataclass(frozen=True)
class SimulatedFault:
    """What is wrong with a run; ranks that are not named are healthy."""

    host_delay_ns: Mapping[int, int] = field(default_factory=dict)
    """By rank: how much later its host launches the work after a collective."""
    every: int = 1
    """Only after every so many collectives."""
    device_slowdown: Mapping[int, float] = field(default_factory=dict)
    """By rank: how many times longer each kernel takes."""
    link_slowdown: float = 1.0
    """How many times longer every transfer takes."""


@dataclass
class _Rank:
    """A recorded rank, and where its times have moved so far."""

    trace: RankTrace
    starts_ns: Integers
    ends_ns: Integers
    """Of its collectives, in order."""
    busy_start_ns: Integers
    busy_end_ns: Integers
    """When some compute kernel runs."""
    old_ns: list[int] = field(default_factory=list)
    new_ns: list[int] = field(default_factory=list)
    """Knots of the map from recorded to simulated time."""
    delays: list[tuple[int, int, int]] = field(default_factory=list)
    """Recorded start and end of the work that a late host held back, and when it resumes."""

    def knot(self, old_ns: int, new_ns: int) -> None:
        self.old_ns.append(old_ns)
        self.new_ns.append(new_ns)

    def span(self, place: int, count: int) -> tuple[int, int]:
        """From the end of one collective to the start of the next, as recorded."""
        device = self.trace.device
        first = int(self.ends_ns[place - 1]) if place else int(device.start_ns.min())
        last = int(self.starts_ns[place]) if place < count else int(device.end_ns.max())
        return first, max(first, last)

    def work(self, first: int, last: int, begin_ns: int, delay_ns: int, slowdown: float) -> int:
        """Moves what the rank does between two collectives; when it has done it."""
        now, cursor = begin_ns, first
        self.knot(first, now)
        inside = (self.busy_start_ns < last) & (self.busy_end_ns > first)
        starts = np.clip(self.busy_start_ns[inside], first, last).tolist()
        ends = np.clip(self.busy_end_ns[inside], first, last).tolist()
        for start, end in zip(starts, ends, strict=True):
            if delay_ns and start > first:
                # Not inside a kernel: a late host keeps the device idle, it stretches nothing.
                now += delay_ns
                self.knot(cursor + 1, now)
                self.delays.append((cursor, last, now))
                delay_ns = 0
            now += max(start - cursor, 0)
            self.knot(start, now)
            now += int((end - start) * slowdown)
            self.knot(end, now)
            cursor = max(cursor, end)
        now += max(last - cursor, 0)
        self.knot(last, now)
        return now


def simulate(
    traces: Sequence[RankTrace],
    fault: SimulatedFault,
    patterns: CommunicationPatterns,
    recorded: Sequence[RankTrace] = (),
) -> list[RankProfile]:
    """The profiles of the same run with the fault in it; as recorded if there is none.

    `recorded` are all ranks of the run, if only some of them are used: the last to arrive at a collective
    shows how long its transfer takes.
    """
    if fault == SimulatedFault() and not recorded:
        return [profile_rank(trace, patterns) for trace in traces]
    ranks = [_read(trace, patterns) for trace in traces]
    count = min(len(rank.starts_ns) for rank in ranks)
    seen = [_read(trace, patterns) for trace in recorded] or ranks
    transfer_ns = np.min([(rank.ends_ns - rank.starts_ns)[:count] for rank in seen], axis=0)
    # All ranks start together on one clock: recorded clocks differ by a constant only.
    now = 0
    for place in range(count + 1):
        is_late = place > 0 and place % fault.every == 0
        arrivals = [
            rank.work(
                *rank.span(place, count),
                now,
                fault.host_delay_ns.get(number, 0) if is_late else 0,
                fault.device_slowdown.get(number, 1.0),
            )
            for number, rank in enumerate(ranks)
        ]
        if place < count:
            now = max(arrivals) + int(transfer_ns[place] * fault.link_slowdown)
            for rank in ranks:
                rank.knot(int(rank.ends_ns[place]), now)
    return [profile_rank(_moved(rank), patterns) for rank in ranks]


def _read(trace: RankTrace, patterns: CommunicationPatterns) -> _Rank:
    work = classify(trace, patterns)
    positions = np.flatnonzero(work.work_class == COMMUNICATION)
    positions = positions[np.argsort(work.spans.start_ns[positions], kind="stable")]
    kernels = work.of_class(COMPUTE)
    busy = cover(kernels.start_ns, kernels.end_ns)
    starts_ns, ends_ns = work.spans.start_ns[positions], work.spans.end_ns[positions]
    if not len(positions):
        # A rank that talks to nobody is cut at its own kernels instead.
        starts_ns = ends_ns = busy.start_ns[KERNELS_PER_CUT::KERNELS_PER_CUT]
    return _Rank(trace, starts_ns, ends_ns, busy.start_ns, busy.end_ns)


def _moved(rank: _Rank) -> RankTrace:
    trace, old = rank.trace, np.asarray(rank.old_ns, dtype=np.int64)
    order = np.argsort(old, kind="stable")
    # Nanoseconds since 1970 are too long for a float: times count from the first knot.
    origin = old.min()
    before = (old[order] - origin).astype(np.float64)
    after = np.maximum.accumulate(np.asarray(rank.new_ns, dtype=np.float64)[order])

    def at(times_ns: Integers) -> Integers:
        since = (times_ns - origin).astype(np.float64)
        shifted = np.interp(since, before, after)
        # Outside the knots nothing is stretched.
        shifted = np.where(since < before[0], since - before[0] + after[0], shifted)
        shifted = np.where(since > before[-1], since - before[-1] + after[-1], shifted)
        return np.asarray(np.round(shifted), dtype=np.int64)

    def moved(spans: Spans) -> Spans:
        return replace(spans, start_ns=at(spans.start_ns), end_ns=at(spans.end_ns))

    device, launches = moved(trace.device), moved(trace.launches)
    return replace(
        trace,
        device=device,
        launches=_late_launches(trace, device, launches, rank.delays),
        host_ops=moved(trace.host_ops),
        annotations=moved(trace.annotations),
        device_annotations=moved(trace.device_annotations),
    )


def _late_launches(
    trace: RankTrace, device: Spans, launches: Spans, delays: Sequence[tuple[int, int, int]]
) -> Spans:
    """Work after a delay is launched when it can start, and not in advance as recorded."""
    due: NDArray[np.int64] = np.full(len(launches), -1, dtype=np.int64)
    found = find_launches(trace.device.link, trace.launches)
    by_link = {link: place for place, link in enumerate(trace.launches.link.tolist())}
    for first, last, resumes_ns in delays:
        inside = (trace.device.start_ns > first) & (trace.device.start_ns <= last) & found.found
        for place in np.flatnonzero(inside).tolist():
            launch = by_link.get(int(trace.device.link[place]))
            if launch is not None and launches.end_ns[launch] < resumes_ns:
                due[launch] = int(device.start_ns[place]) - LAUNCH_AHEAD_NS
    late = due >= 0
    duration = launches.end_ns - launches.start_ns
    end_ns = np.where(late, np.maximum(due, launches.end_ns), launches.end_ns)
    return replace(launches, start_ns=np.where(late, end_ns - duration, launches.start_ns), end_ns=end_ns)


def relabelled(trace: RankTrace, rank: int) -> RankTrace:
    """The same recording as another rank of the job."""
    return replace(trace, distributed=replace(trace.distributed, rank=rank))
