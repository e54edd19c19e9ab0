"""Collectives of all ranks: by kind, group and size, with waiting told from transfer.

The same collective is found on every rank by its order within kind and group. All ranks leave a
synchronising collective together, and the one that arrived last did not wait: the shortest duration is
the transfer, what any rank spent beyond it is waiting. That needs no common clock. Bus bandwidth is size
/ transfer × the correction of nccl-tests (doc/PERFORMANCE.md), so that it compares with the link whatever
the kind.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from tools.hardware import Device
from tools.trace.collective_events import CollectiveEvent
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
