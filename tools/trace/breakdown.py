"""Where a rank's time goes: computing, exposed communication, copies, idle; and why it is idle.

The terms are those of the contract: compute + exposed communication + memory + idle = total, exactly,
because all of it is integer arithmetic on unions of intervals. Idle time before the launch of the next
device event has returned is the host's; the rest is waiting (the launch was there, the device was not
free to start).
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tools.trace.classify import COMMUNICATION, COMPUTE, Work
from tools.trace.intervals import Coverage, cover, join
from tools.trace.links import find_launches
from tools.trace.record import Spans


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

    def as_microseconds(self) -> dict[str, Any]:
        """The contract's names and units."""
        times = {one.name.removesuffix("_ns") + "_us": getattr(self, one.name) / 1000 for one in fields(self)}
        ratio = self.overlap_ratio
        return {**times, "overlap_ratio": None if ratio is None else round(ratio, 6)}


def add_breakdowns(parts: list[Breakdown]) -> Breakdown:
    """Term by term; times of several ranks are rank-seconds."""
    return Breakdown(
        **{one.name: sum(getattr(part, one.name) for part in parts) for one in fields(Breakdown)}
    )


@dataclass(frozen=True)
class Occupancy:
    """Unions of a rank's work that answer for any window of time."""

    compute: Coverage
    communication: Coverage
    busy_or_talking: Coverage
    busy: Coverage
    idle_host: Coverage
    idle_unknown: Coverage

    def breakdown(self, start_ns: int, end_ns: int) -> Breakdown:
        """The terms inside one window."""
        inside = {one.name: int(getattr(self, one.name).between(start_ns, end_ns)[0]) for one in fields(self)}
        total_ns = end_ns - start_ns
        idle_ns = total_ns - inside["busy"]
        return Breakdown(
            compute_ns=inside["compute"],
            communication_ns=inside["communication"],
            exposed_communication_ns=inside["busy_or_talking"] - inside["compute"],
            memory_ns=inside["busy"] - inside["busy_or_talking"],
            idle_ns=idle_ns,
            total_ns=total_ns,
            idle_host_ns=inside["idle_host"],
            idle_waiting_ns=idle_ns - inside["idle_host"] - inside["idle_unknown"],
            idle_unknown_ns=inside["idle_unknown"],
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
    """The parts of the gaps that the host caused, and those nobody can tell."""
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
