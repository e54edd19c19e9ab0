"""Who waits for whom: collectives matched across ranks, transfer and waiting, stragglers, pipeline stages.

The same collective is matched by its order within kind and group; its shortest duration is the transfer,
the rest is waiting, which needs no common clock. Bus bandwidth as in nccl-tests (doc/PERFORMANCE.md).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tools.hardware import Device
from tools.scenario.spec import Result
from tools.trace.collectives import CollectiveEvent
from tools.trace.rank_profile import RankProfile
from tools.trace.record import Integers

SYNCHRONISING = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""No rank can leave these before all have arrived."""

_MIN_SPREAD_NS = 2_000_000
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
        """Per collective; an upper bound if only one rank was profiled."""
        return np.asarray(self.duration_ns.min(axis=0))

    @property
    def waiting_ns(self) -> Integers | None:
        """By rank and collective; None if it cannot be separated from the transfer."""
        return self.duration_ns - self.transfer_ns if self.is_synchronising else None


def align(profiles: list[RankProfile]) -> list[AlignedCollectives]:
    """Every kind and group with the ranks that took part."""
    sequences: dict[GroupKey, dict[int, list[CollectiveEvent]]] = defaultdict(dict)
    for profile in profiles:
        for event in profile.collectives:
            sequences[event.kind, event.group_key].setdefault(profile.rank, []).append(event)
    return [
        aligned for key, by_rank in sorted(sequences.items()) for aligned in _align_or_separate(key, by_rank)
    ]


def _align_or_separate(key: GroupKey, by_rank: dict[int, list[CollectiveEvent]]) -> list[AlignedCollectives]:
    """One alignment, or one per rank if the traces do not seem to be of the same run."""
    together = _align_group(key, by_rank)
    if _is_same_run(together):
        return [together]
    return [_align_group(key, {rank: events}) for rank, events in sorted(by_rank.items())]


def _is_same_run(aligned: AlignedCollectives) -> bool:
    """Whether the ranks leave the same collectives together, up to a constant clock offset."""
    if not aligned.is_synchronising:
        return True
    offset_ns = np.median(aligned.end_ns - aligned.end_ns[0], axis=1).astype(np.int64)[:, None]
    ends_ns = aligned.end_ns - offset_ns
    spread_ns = np.median(ends_ns.max(axis=0) - ends_ns.min(axis=0))
    return bool(spread_ns <= max(_MIN_SPREAD_NS, float(np.median(aligned.duration_ns.max(axis=0)))))


def _align_group(key: GroupKey, by_rank: dict[int, list[CollectiveEvent]]) -> AlignedCollectives:
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


class CollectiveSummary(Result):
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


def summarise(aligned: list[AlignedCollectives], device: Device | None = None) -> list[CollectiveSummary]:
    """One entry per kind, group and size, longest first."""
    summaries = [summary for group in aligned for summary in _summarise_group(group, device)]
    return sorted(summaries, key=lambda summary: -summary.time_us)


def _summarise_group(group: AlignedCollectives, device: Device | None) -> list[CollectiveSummary]:
    sizes = np.array(
        [-1 if event.message_bytes is None else event.message_bytes for event in group.events[0]]
    )
    link = None if device is None else link_bytes_per_s(group, device)
    return [
        _summarise_size(group, np.flatnonzero(sizes == size), size, link)
        for size in np.unique(sizes).tolist()
    ]


def link_bytes_per_s(group: AlignedCollectives, device: Device) -> float:
    """The catalogue's scale-up link, or the network's if the group spans several scale-up domains."""
    domain = max(device.devices_per_node, device.fast_domain_devices)
    ranks = group.events[0][0].ranks
    spans = len({rank // domain for rank in ranks}) > 1 if ranks else (group.group_size or 1) > domain
    return device.inter_node_bytes_per_s if spans else device.intra_node_bytes_per_s


def _summarise_size(
    group: AlignedCollectives, columns: Integers, size: int, link_bytes_per_s: float | None
) -> CollectiveSummary:
    transfer_ns = group.transfer_ns[columns]
    waiting_ns = None if group.waiting_ns is None else group.waiting_ns[:, columns]
    bandwidth = _bus_bandwidth(group, transfer_ns, size)
    return CollectiveSummary(
        kind=group.kind,
        group=group.group,
        group_size=group.group_size,
        ranks_seen=len(group.ranks),
        message_bytes=None if size < 0 else size,
        count=len(columns),
        time_us=float(group.duration_ns[:, columns].sum(axis=1).mean()) / 1000,
        transfer_us=float(transfer_ns.sum()) / 1000,
        waiting_us=None if waiting_ns is None else float(waiting_ns.sum(axis=1).mean()) / 1000,
        bus_bandwidth_gbytes_per_s=None if bandwidth is None else bandwidth / 1e9,
        link_gbytes_per_s=None if link_bytes_per_s is None else link_bytes_per_s / 1e9,
        transfer_is_upper_bound=not group.is_synchronising,
    )


def _bus_bandwidth(group: AlignedCollectives, transfer_ns: Integers, size: int) -> float | None:
    """Of the median collective, in bytes per second."""
    median_ns = float(np.median(transfer_ns))
    if size <= 0 or median_ns <= 0 or not group.group_size or group.group_size < 2:
        return None
    return size * bus_factor(group.kind, group.group_size) / (median_ns * 1e-9)


_TIMES_CHANCE = 2.0
_ALWAYS_OFTEN_RATIO = 0.6
_MIN_SHARE_OF_LATENESS = 0.05
_CAUSES = {
    "before_loader_ns": "data loader",
    "before_host_ns": "host late: launches came late",
    "before_compute_ns": "compute longer",
}


class CauseTimes(Result):
    """Time beyond the other ranks' before the collectives that a straggler was last at."""

    loader_us: float
    host_us: float
    compute_us: float


class Straggler(Result):
    """A rank that the others wait for."""

    rank: int
    arrives_last_ratio: float
    late_by_us: float
    """Mean over the collectives it was last at, behind the second to last."""
    late_total_us: float
    share_of_lateness: float
    cause: str
    cause_us: CauseTimes


@dataclass
class _Arrivals:
    """Summed over all aligned collectives in which the rank took part."""

    collectives: int = 0
    last: int = 0
    late_ns: int = 0
    """Behind the second to last, if this rank was last."""
    excess_ns: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_CAUSES, 0.0))
    """By cause: more than the others, before the collectives it was last at."""


def find_stragglers(aligned: list[AlignedCollectives]) -> list[Straggler]:
    """Worst first; empty if no rank stands out or only one was profiled."""
    arrivals: dict[int, _Arrivals] = {}
    group_size = 0
    for group in aligned:
        if group.is_synchronising:
            _count_arrivals(group, arrivals)
            group_size = max(group_size, len(group.ranks))
    all_late_ns = sum(counted.late_ns for counted in arrivals.values())
    if not all_late_ns:
        return []
    often = min(_TIMES_CHANCE / group_size, _ALWAYS_OFTEN_RATIO)
    candidates = [_straggler(rank, counted, all_late_ns) for rank, counted in arrivals.items()]
    stragglers = [
        candidate
        for candidate in candidates
        if candidate.arrives_last_ratio >= often and candidate.share_of_lateness >= _MIN_SHARE_OF_LATENESS
    ]
    return sorted(stragglers, key=lambda straggler: (-straggler.arrives_last_ratio, straggler.rank))


def aligned_starts_ns(group: AlignedCollectives) -> Integers:
    """Starts on one clock: each rank is shifted by the median difference of its ends."""
    middle = np.median(group.end_ns, axis=0)
    offset = np.median(group.end_ns - middle, axis=1).astype(np.int64)
    return np.asarray(group.start_ns - offset[:, None])


def _count_arrivals(group: AlignedCollectives, arrivals: dict[int, _Arrivals]) -> None:
    starts_ns = aligned_starts_ns(group)
    last = starts_ns.argmax(axis=0)
    in_order_ns = np.sort(starts_ns, axis=0)
    late_ns = in_order_ns[-1] - in_order_ns[-2]
    for row, rank in enumerate(group.ranks):
        counted = arrivals.setdefault(rank, _Arrivals())
        columns = np.flatnonzero(last == row)
        counted.collectives += len(last)
        counted.last += len(columns)
        counted.late_ns += int(late_ns[columns].sum())
        for cause in _CAUSES:
            counted.excess_ns[cause] += _excess_ns(group.events, row, columns, cause)


def _excess_ns(events: Sequence[Sequence[CollectiveEvent]], row: int, columns: Integers, cause: str) -> float:
    """How much more of one activity than the median of the others, before the collectives it was last at."""
    others = [index for index in range(len(events)) if index != row]
    total = 0.0
    for column in columns.tolist():
        usual = float(np.median([getattr(events[index][column], cause) for index in others]))
        total += max(0.0, getattr(events[row][column], cause) - usual)
    return total


def _straggler(rank: int, counted: _Arrivals, all_late_ns: int) -> Straggler:
    excess_ns = dict(counted.excess_ns)
    # Loading data leaves the device idle too: what the loader explains does not count as late launches.
    excess_ns["before_host_ns"] = max(0.0, excess_ns["before_host_ns"] - excess_ns["before_loader_ns"])
    cause = max(excess_ns, key=lambda name: excess_ns[name]) if any(excess_ns.values()) else None
    return Straggler(
        rank=rank,
        arrives_last_ratio=round(counted.last / counted.collectives, 4),
        late_by_us=counted.late_ns / max(counted.last, 1) / 1000,
        late_total_us=counted.late_ns / 1000,
        share_of_lateness=round(counted.late_ns / all_late_ns, 4),
        cause=_CAUSES[cause] if cause else "not shown by the trace",
        cause_us=CauseTimes(
            loader_us=excess_ns["before_loader_ns"] / 1000,
            host_us=excess_ns["before_host_ns"] / 1000,
            compute_us=excess_ns["before_compute_ns"] / 1000,
        ),
    )


MAX_LATENESS_COLUMNS = 120


class Lateness(Result):
    """How long after the first rank each rank entered the collectives, in time order."""

    ranks: list[int]
    late_us: list[list[float | None]]
    """A row per rank, a column per run of neighbouring collectives; None if the rank took no part."""


def measure_lateness(aligned: Sequence[AlignedCollectives]) -> Lateness | None:
    """None if no collective synchronises two of the ranks."""
    synchronising = [group for group in aligned if group.is_synchronising]
    if not synchronising:
        return None
    ranks = sorted({rank for group in synchronising for rank in group.ranks})
    blocks, first_ns = [], []
    for group in synchronising:
        starts_ns = aligned_starts_ns(group)
        late_us = (starts_ns - starts_ns.min(axis=0)) / 1000
        block = np.full((len(ranks), late_us.shape[1]), np.nan)
        block[[ranks.index(rank) for rank in group.ranks]] = late_us
        blocks.append(block)
        first_ns.append(starts_ns.min(axis=0))
    in_order = np.argsort(np.concatenate(first_ns), kind="stable")
    late_us = _mean_of_neighbours(np.concatenate(blocks, axis=1)[:, in_order])
    return Lateness(
        ranks=ranks,
        late_us=[[None if np.isnan(us) else round(float(us), 2) for us in row] for row in late_us],
    )


def _mean_of_neighbours(late_us: NDArray[np.float64]) -> NDArray[np.float64]:
    """At most as many columns as a figure can show."""
    parts = np.array_split(late_us, min(MAX_LATENESS_COLUMNS, late_us.shape[1]), axis=1)
    sums = np.stack([np.nansum(part, axis=1) for part in parts], axis=1)
    counts = np.stack([np.sum(~np.isnan(part), axis=1) for part in parts], axis=1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


_POINT_TO_POINT = "send_recv"


class PipelineStages(Result):
    """How evenly the stages of a pipeline compute, and what they wait for one another."""

    ranks: list[int]
    bubble_ratio: float
    bubble_us: dict[str, float]
    """By rank."""
    imbalance_ratio: float
    slowest_rank: int


def analyse_pipeline(profiles: list[RankProfile]) -> PipelineStages | None:
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
