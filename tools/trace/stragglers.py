"""Which ranks arrive last at collectives, by how much, and what they were doing.

Arrivals are compared on clocks shifted so that the ranks' ends of the same collectives agree. A straggler
is a rank that comes last more than twice as often as chance and causes a real share of the waiting. What
it did is the work since the collective before, set beside the median of the other ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tools.trace.collective_events import CollectiveEvent
from tools.trace.collectives import AlignedCollectives
from tools.trace.record import Integers

_TIMES_CHANCE = 2.0
_ALWAYS_OFTEN_RATIO = 0.6
_LEAST_SHARE_OF_LATENESS = 0.05
_CAUSES = {
    "before_loader_ns": "data loader",
    "before_host_ns": "host late: launches came late",
    "before_compute_ns": "compute longer",
}


@dataclass
class _Arrivals:
    """Summed over all aligned collectives in which the rank took part."""

    collectives: int = 0
    last: int = 0
    late_ns: int = 0
    """Behind the second to last, where this rank was last."""
    excess_ns: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_CAUSES, 0.0))
    """By cause: more than the others did, before the collectives it was last at."""


def find_stragglers(aligned: list[AlignedCollectives]) -> list[dict[str, Any]]:
    """Worst first; empty when no rank stands out or only one was profiled."""
    arrivals: dict[int, _Arrivals] = {}
    group_size = 0
    for one in aligned:
        if one.is_synchronising:
            _count(one, arrivals)
            group_size = max(group_size, len(one.ranks))
    all_late_ns = sum(one.late_ns for one in arrivals.values())
    if not all_late_ns:
        return []
    entries = [_entry(rank, one, all_late_ns) for rank, one in arrivals.items()]
    often = min(_TIMES_CHANCE / group_size, _ALWAYS_OFTEN_RATIO)
    chosen = [
        entry
        for entry in entries
        if entry["arrives_last_ratio"] >= often and entry["share_of_lateness"] >= _LEAST_SHARE_OF_LATENESS
    ]
    return sorted(chosen, key=lambda entry: (-entry["arrives_last_ratio"], entry["rank"]))


def aligned_starts_ns(one: AlignedCollectives) -> Integers:
    """Starts on one clock: each rank is shifted by the median difference of its ends."""
    middle = np.median(one.end_ns, axis=0)
    offset = np.median(one.end_ns - middle, axis=1).astype(np.int64)
    return np.asarray(one.start_ns - offset[:, None])


def _count(one: AlignedCollectives, arrivals: dict[int, _Arrivals]) -> None:
    starts_ns = aligned_starts_ns(one)
    last = starts_ns.argmax(axis=0)
    late_ns = np.sort(starts_ns, axis=0)[-1] - np.sort(starts_ns, axis=0)[-2]
    for row, rank in enumerate(one.ranks):
        entry = arrivals.setdefault(rank, _Arrivals())
        mine = np.flatnonzero(last == row)
        entry.collectives += len(last)
        entry.last += len(mine)
        entry.late_ns += int(late_ns[mine].sum())
        for cause in _CAUSES:
            entry.excess_ns[cause] += _excess_ns(one.events, row, mine, cause)


def _excess_ns(events: Sequence[Sequence[CollectiveEvent]], row: int, columns: Integers, cause: str) -> float:
    """How much more of one activity than the median of the others, before the collectives it was last at."""
    others = [index for index in range(len(events)) if index != row]
    total = 0.0
    for column in columns.tolist():
        usual = float(np.median([getattr(events[index][column], cause) for index in others]))
        total += max(0.0, getattr(events[row][column], cause) - usual)
    return total


def _entry(rank: int, one: _Arrivals, all_late_ns: int) -> dict[str, Any]:
    excess = dict(one.excess_ns)
    # Loading data shows as an idle device too: what the loader explains is not put on the launches.
    excess["before_host_ns"] = max(0.0, excess["before_host_ns"] - excess["before_loader_ns"])
    cause = max(excess, key=lambda name: excess[name]) if any(excess.values()) else None
    return {
        "rank": rank,
        "arrives_last_ratio": round(one.last / one.collectives, 4),
        "late_by_us": one.late_ns / max(one.last, 1) / 1000,
        "late_total_us": one.late_ns / 1000,
        "share_of_lateness": round(one.late_ns / all_late_ns, 4),
        "cause": _CAUSES[cause] if cause else "not told by the trace",
        "cause_us": {
            name.removeprefix("before_").replace("_ns", "_us"): ns / 1000 for name, ns in excess.items()
        },
    }
