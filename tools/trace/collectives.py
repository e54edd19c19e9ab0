"""Collectives across ranks: waiting against transfer by kind, group and size; stragglers; pipeline stages.

The same collective is matched by its order within kind and group; its shortest duration is the transfer,
the rest is waiting, which needs no common clock. Bus bandwidth as in nccl-tests (doc/PERFORMANCE.md).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tools.hardware import Device
from tools.trace.rank_collectives import CollectiveEvent
from tools.trace.rank_profile import RankProfile
from tools.trace.record import Integers

SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""No rank can leave these before all have arrived."""

_LEAST_SPREAD_NS = 2_000_000
"""Clocks of one machine room drift by less than this during a profile."""

GroupKey = tuple[str, str]


@dataclass(frozen=True)
class AlignedCollectives:
    """One kind in one group: a row per rank, a column per collective."""

    kind: str
    group: str
    ranks: list[int]
    group_size: int | None
    events: list[list[CollectiveEvent]]
    start_ns: Integers
    end_ns: Integers

    @property
    def is_synchronising(self) -> bool:
        return len(self.ranks) > 1 and self.kind in SYNCHRONISING

    @property
    def duration_ns(self) -> Integers:
        return self.end_ns - self.start_ns

    @property
    def transfer_ns(self) -> Integers:
        """Of each collective; an upper bound when only one rank is there to see."""
        return np.asarray(self.duration_ns.min(axis=0))

    @property
    def waiting_ns(self) -> Integers | None:
        """By rank and collective; None where it cannot be told."""
        return self.duration_ns - self.transfer_ns if self.is_synchronising else None


def align(profiles: list[RankProfile]) -> list[AlignedCollectives]:
    """Every kind and group with the ranks that took part."""
    sequences: dict[GroupKey, dict[int, list[CollectiveEvent]]] = defaultdict(dict)
    for profile in profiles:
        for event in profile.collectives:
            sequences[event.kind, event.group_key].setdefault(profile.rank, []).append(event)
    return [one for key, by_rank in sorted(sequences.items()) for one in _align_or_part(key, by_rank)]


def _align_or_part(key: GroupKey, by_rank: dict[int, list[CollectiveEvent]]) -> list[AlignedCollectives]:
    """One alignment; or one per rank when the traces do not seem to be of one run."""
    together = _align_one(key, by_rank)
    if _is_one_run(together):
        return [together]
    return [_align_one(key, {rank: events}) for rank, events in sorted(by_rank.items())]


def _is_one_run(one: AlignedCollectives) -> bool:
    """Whether the ranks leave the same collectives together, up to a constant difference of clocks."""
    if not one.is_synchronising:
        return True
    ends_ns = one.end_ns - np.median(one.end_ns - one.end_ns[0], axis=1).astype(np.int64)[:, None]
    spread_ns = np.median(ends_ns.max(axis=0) - ends_ns.min(axis=0))
    return bool(spread_ns <= max(_LEAST_SPREAD_NS, float(np.median(one.duration_ns.max(axis=0)))))


def _align_one(key: GroupKey, by_rank: dict[int, list[CollectiveEvent]]) -> AlignedCollectives:
    ranks = sorted(by_rank)
    rows = _same_length([by_rank[rank] for rank in ranks])
    return AlignedCollectives(
        kind=key[0],
        group=key[1],
        ranks=ranks,
        group_size=rows[0][0].group_size,
        events=rows,
        start_ns=np.array([[event.start_ns for event in row] for row in rows], dtype=np.int64),
        end_ns=np.array([[event.end_ns for event in row] for row in rows], dtype=np.int64),
    )


def _same_length(rows: list[list[CollectiveEvent]]) -> list[list[CollectiveEvent]]:
    """Traces may be cut at either end: keep the side on which the ranks' ends agree better."""
    length = min(len(row) for row in rows)
    if all(len(row) == length for row in rows):
        return rows
    first, last = [row[:length] for row in rows], [row[-length:] for row in rows]
    return first if _disagreement(first) <= _disagreement(last) else last


def _disagreement(rows: list[list[CollectiveEvent]]) -> float:
    """How much the difference between two ranks' ends varies over the collectives."""
    ends_ns = np.array([[event.end_ns for event in row] for row in rows], dtype=np.float64)
    return float(np.std(ends_ns - ends_ns[0], axis=1).sum())


def bus_factor(kind: str, group_size: int) -> float:
    """Bytes on the busiest link over the message's bytes (nccl-tests, PERFORMANCE.md)."""
    if kind == "all_reduce":
        return 2 * (group_size - 1) / group_size
    if kind in ("all_gather", "reduce_scatter", "all_to_all"):
        return (group_size - 1) / group_size
    return 1.0


def summarise(aligned: list[AlignedCollectives], device: Device | None = None) -> list[dict[str, Any]]:
    """One entry per kind, group and size; times are means over the ranks, largest first."""
    entries = [entry for one in aligned for entry in _entries(one, device)]
    return sorted(entries, key=lambda entry: -entry["time_us"])


def _entries(one: AlignedCollectives, device: Device | None) -> list[dict[str, Any]]:
    known = (event.message_bytes for event in one.events[0])
    sizes = np.array([-1 if size is None else size for size in known])
    link = None if device is None else _link_bytes_per_s(one, device)
    return [_entry(one, np.flatnonzero(sizes == size), size, link) for size in np.unique(sizes).tolist()]


def _link_bytes_per_s(one: AlignedCollectives, device: Device) -> float:
    """The catalogue's fast link, or the network's where the group spans several domains of fast links."""
    domain = max(device.devices_per_node, device.fast_domain_devices)
    ranks = one.events[0][0].ranks
    spans = len({rank // domain for rank in ranks}) > 1 if ranks else (one.group_size or 1) > domain
    return device.inter_node_bytes_per_s if spans else device.intra_node_bytes_per_s


def _entry(
    one: AlignedCollectives, columns: Integers, size: int, link_bytes_per_s: float | None
) -> dict[str, Any]:
    transfer_ns = one.transfer_ns[columns]
    waiting_ns = None if one.waiting_ns is None else one.waiting_ns[:, columns]
    bandwidth = _bus_bandwidth(one, transfer_ns, size)
    return {
        "kind": one.kind,
        "group": one.group,
        "group_size": one.group_size,
        "ranks_seen": len(one.ranks),
        "message_bytes": None if size < 0 else size,
        "count": len(columns),
        "time_us": float(one.duration_ns[:, columns].sum(axis=1).mean()) / 1000,
        "transfer_us": float(transfer_ns.sum()) / 1000,
        "waiting_us": None if waiting_ns is None else float(waiting_ns.sum(axis=1).mean()) / 1000,
        "bus_bandwidth_gbytes_per_s": None if bandwidth is None else bandwidth / 1e9,
        "link_gbytes_per_s": None if link_bytes_per_s is None else link_bytes_per_s / 1e9,
        "transfer_is_upper_bound": not one.is_synchronising,
    }


def _bus_bandwidth(one: AlignedCollectives, transfer_ns: Integers, size: int) -> float | None:
    """Of the median collective, in bytes per second."""
    median_ns = float(np.median(transfer_ns))
    if size <= 0 or median_ns <= 0 or not one.group_size or one.group_size < 2:
        return None
    return size * bus_factor(one.kind, one.group_size) / (median_ns * 1e-9)


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
    entries = [_entry_stragglers(rank, one, all_late_ns) for rank, one in arrivals.items()]
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


def _entry_stragglers(rank: int, one: _Arrivals, all_late_ns: int) -> dict[str, Any]:
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


_POINT_TO_POINT = "send_recv"


def analyse_pipeline(profiles: list[RankProfile]) -> dict[str, Any] | None:
    """None when fewer than two ranks exchange point to point."""
    stages = [one for one in profiles if one.exposed_by_kind_ns.get(_POINT_TO_POINT) is not None]
    if len(stages) < 2:
        return None
    compute_ns = np.array([one.breakdown.compute_ns for one in stages], dtype=np.float64)
    bubble_ns = np.array([one.exposed_by_kind_ns[_POINT_TO_POINT] for one in stages], dtype=np.float64)
    total_ns = np.array([max(one.breakdown.total_ns, 1) for one in stages], dtype=np.float64)
    mean_ns = float(compute_ns.mean())
    return {
        "ranks": [one.rank for one in stages],
        "bubble_ratio": float(bubble_ns.sum() / total_ns.sum()),
        "bubble_us": {str(one.rank): float(ns) / 1000 for one, ns in zip(stages, bubble_ns, strict=True)},
        "imbalance_ratio": float(compute_ns.max() / mean_ns - 1) if mean_ns else 0.0,
        "slowest_rank": stages[int(compute_ns.argmax())].rank,
    }
