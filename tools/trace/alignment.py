"""Collectives matched across ranks: what each transfers and how long each rank waits; pipeline stages.

The same collective is matched by its order within kind and group; its shortest duration is the transfer,
the rest is waiting, which needs no common clock. Bus bandwidth as in nccl-tests (doc/PERFORMANCE.md).
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from tools.hardware import Device
from tools.scenario.spec import ClosedModel
from tools.trace.collectives import CollectiveEvent
from tools.trace.links import Placement, bus_factor, bus_limit_bytes_per_s, domain_of, place_ranks
from tools.trace.rank_profile import RankProfile
from tools.trace.record import Integers

SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""No rank can leave these before all have arrived."""
_MIN_SPREAD_NS = 2_000_000
"""Clocks of one machine room drift by less than this during a profile."""
_POINT_TO_POINT = "send_recv"
_BEFORE = ("before_loader_ns", "before_host_ns", "before_compute_ns")


@dataclass(frozen=True)
class AlignedCollectives:
    """One kind in one group: a row per rank, a column per collective."""

    kind: str
    group: str
    ranks: list[int]
    events: list[list[CollectiveEvent]]
    before: Mapping[int, CollectiveEvent] = field(default_factory=dict)
    """By the identity of an event: the one of its rank that ended last before it started."""

    @property
    def group_size(self) -> int | None:
        return self.events[0][0].group_size

    @property
    def is_synchronising(self) -> bool:
        return len(self.ranks) > 1 and self.kind in SYNCHRONISING

    @cached_property
    def start_ns(self) -> Integers:
        return np.array([[event.start_ns for event in row] for row in self.events], dtype=np.int64)

    @cached_property
    def end_ns(self) -> Integers:
        return np.array([[event.end_ns for event in row] for row in self.events], dtype=np.int64)

    @cached_property
    def sizes_bytes(self) -> Integers:
        """By collective; -1 if not recorded."""
        sizes = [event.message_bytes for event in self.events[0]]
        return np.array([-1 if size is None else size for size in sizes], dtype=np.int64)

    @cached_property
    def reached_ns(self) -> Integers:
        """When each rank had done with the collective before; its own start if that is not known."""
        ends_ns = [[self.before.get(id(event), event).end_ns for event in row] for row in self.events]
        return np.minimum(np.array(ends_ns, dtype=np.int64), self.start_ns)

    @cached_property
    def duration_ns(self) -> Integers:
        return self.end_ns - self.start_ns

    @property
    def transfer_ns(self) -> Integers:
        """Per collective; an upper bound if only one rank was profiled."""
        return np.asarray(self.duration_ns.min(axis=0))

    @property
    def waiting_ns(self) -> Integers | None:
        """By rank and collective; None if it cannot be separated from the transfer."""
        return self.duration_ns - self.transfer_ns if self.is_synchronising else None

    @property
    def waiting_ratios(self) -> dict[int, float]:
        """By rank: the share of its time in these collectives that is waiting; empty if it is not known."""
        if self.waiting_ns is None:
            return {}
        ratios = self.waiting_ns.sum(axis=1) / np.maximum(self.duration_ns.sum(axis=1), 1)
        return dict(zip(self.ranks, ratios.tolist(), strict=True))

    @cached_property
    def aligned_starts_ns(self) -> Integers:
        """Starts on one clock: each rank is shifted by the median difference of its ends."""
        offset = np.median(self.end_ns - np.median(self.end_ns, axis=0), axis=1).astype(np.int64)
        return np.asarray(self.start_ns - offset[:, None])

    @cached_property
    def excess_ns(self) -> NDArray[np.float64]:
        """By rank and collective, what the rank did more than the others before it: loading data, host late,
        computing, how much later its collective before ended, and how much later it came itself."""
        names = attrgetter(*_BEFORE)
        before_ns = np.array([[names(event) for event in row] for row in self.events], dtype=np.float64)
        ended_ns = self.reached_ns - (self.start_ns - self.aligned_starts_ns)
        later_ns = np.stack([ended_ns, self.aligned_starts_ns], axis=2)
        before_ns = np.concatenate([before_ns, later_ns], axis=2)
        return before_ns - median_of_others(before_ns)

    @cached_property
    def link_ranks(self) -> tuple[int, ...]:
        """All members if the trace names them, else those that were profiled."""
        return self.events[0][0].ranks or tuple(self.ranks)

    def place(self, domain: int) -> Placement:
        known = self.events[0][0].ranks or (self.ranks if len(self.ranks) > 1 else ())
        return place_ranks(known, self.group_size or max(len(known), 1), domain)


def median_of_others(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each entry along the first axis, the median of all others; of one alone, its own value."""
    count = len(values)
    if count < 2:
        return values
    order = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    in_order = np.sort(values, axis=0)
    low, high = (count - 2) // 2, (count - 1) // 2
    # Without the entry itself every later one moves up by a place.
    lower = np.where(order <= low, in_order[low + 1], in_order[low])
    upper = np.where(order <= high, in_order[high + 1], in_order[high])
    return np.asarray((lower + upper) / 2)


def align(profiles: Sequence[RankProfile]) -> list[AlignedCollectives]:
    """Every kind and group with the ranks that took part."""
    sequences: dict[tuple[str, str], dict[int, list[CollectiveEvent]]] = defaultdict(dict)
    before: dict[int, CollectiveEvent] = {}
    for profile in profiles:
        last: CollectiveEvent | None = None
        for event in profile.collectives:
            sequences[event.kind, event.group_key].setdefault(profile.rank, []).append(event)
            if last is not None:
                before[id(event)] = last
            last = event if last is None or event.end_ns > last.end_ns else last
    found = []
    for (kind, group), by_rank in sorted(sequences.items()):
        ranks = sorted(by_rank)
        rows = [by_rank[rank] for rank in ranks]
        length = min(map(len, rows))
        if any(len(row) != length for row in rows):
            # Traces may be cut at either end: the side on which the ranks' ends agree better is kept.
            rows = min([row[:length] for row in rows], [row[-length:] for row in rows], key=_disagreement)
        together = AlignedCollectives(kind, group, ranks, rows, before)
        if _is_same_run(together):
            found.append(together)
        else:
            found += [AlignedCollectives(kind, group, [rank], [by_rank[rank]], before) for rank in ranks]
    return found


def _disagreement(rows: list[list[CollectiveEvent]]) -> float:
    """How much the difference between two ranks' ends varies over the collectives."""
    ends_ns = np.array([[event.end_ns for event in row] for row in rows], dtype=np.float64)
    return float(np.std(ends_ns - ends_ns[0], axis=1).sum())


def _is_same_run(aligned: AlignedCollectives) -> bool:
    """Whether the ranks leave the same collectives together, up to a constant clock offset."""
    if not aligned.is_synchronising:
        return True
    offset_ns = np.median(aligned.end_ns - aligned.end_ns[0], axis=1).astype(np.int64)[:, None]
    ends_ns = aligned.end_ns - offset_ns
    spread_ns = np.median(ends_ns.max(axis=0) - ends_ns.min(axis=0))
    return bool(spread_ns <= max(_MIN_SPREAD_NS, float(np.median(aligned.duration_ns.max(axis=0)))))


class CollectiveSummary(ClosedModel):
    """All collectives of one kind and size in one group; times are means over the ranks."""

    kind: str
    group: str
    group_size: int | None
    ranks_seen: int
    message_bytes: int | None
    count: int
    time_us: float
    transfer_us: float
    waiting_us: float | None
    bus_bandwidth_gbytes_per_s: float | None
    link_gbytes_per_s: float | None
    transfer_is_upper_bound: bool


def summarise(aligned: Sequence[AlignedCollectives], device: Device | None = None) -> list[CollectiveSummary]:
    """One entry per kind, group and size, longest first."""
    summaries = []
    for group in aligned:
        link = None
        if device is not None:
            place = group.place(domain_of(device))
            link = bus_limit_bytes_per_s(device, group.kind, place) / 1e9
        for size in np.unique(group.sizes_bytes).tolist():
            columns = group.sizes_bytes == size
            transfer_ns = group.transfer_ns[columns]
            bandwidth, median_ns = None, float(np.median(transfer_ns))
            if size > 0 and median_ns > 0 and group.group_size and group.group_size > 1:
                bandwidth = size * bus_factor(group.kind, group.group_size) / median_ns
            waiting_us = None
            if group.waiting_ns is not None:
                waiting_us = float(group.waiting_ns[:, columns].sum(axis=1).mean()) / 1000
            summaries.append(
                CollectiveSummary(
                    kind=group.kind,
                    group=group.group,
                    group_size=group.group_size,
                    ranks_seen=len(group.ranks),
                    message_bytes=None if size < 0 else size,
                    count=int(columns.sum()),
                    time_us=float(group.duration_ns[:, columns].sum(axis=1).mean()) / 1000,
                    transfer_us=float(transfer_ns.sum()) / 1000,
                    waiting_us=waiting_us,
                    bus_bandwidth_gbytes_per_s=bandwidth,
                    link_gbytes_per_s=link,
                    transfer_is_upper_bound=not group.is_synchronising,
                )
            )
    return sorted(summaries, key=lambda summary: -summary.time_us)


class PipelineStages(ClosedModel):
    """How evenly the stages of a pipeline compute, and what they wait for one another."""

    ranks: list[int]
    bubble_ratio: float
    bubble_us: dict[str, float]
    """By rank."""
    imbalance_ratio: float
    slowest_rank: int


def analyse_pipeline(profiles: Sequence[RankProfile]) -> PipelineStages | None:
    """None if fewer than two ranks exchange point to point."""
    stages = [profile for profile in profiles if _POINT_TO_POINT in profile.exposed_by_kind_ns]
    if len(stages) < 2:
        return None
    compute_ns = np.array([stage.breakdown.compute_ns for stage in stages], dtype=np.float64)
    bubble_ns = np.array([stage.exposed_by_kind_ns[_POINT_TO_POINT] for stage in stages], dtype=np.float64)
    total_ns = np.array([max(stage.breakdown.total_ns, 1) for stage in stages], dtype=np.float64)
    mean_ns = float(compute_ns.mean())
    return PipelineStages(
        ranks=[stage.rank for stage in stages],
        bubble_ratio=float(bubble_ns.sum() / total_ns.sum()),
        bubble_us={str(stage.rank): float(ns) / 1000 for stage, ns in zip(stages, bubble_ns, strict=True)},
        imbalance_ratio=float(compute_ns.max() / mean_ns - 1) if mean_ns else 0.0,
        slowest_rank=stages[int(compute_ns.argmax())].rank,
    )
