"""Who waits for whom and why: stragglers, how late each rank is, the collectives that waited longest.

Also what the transfers of a group suffer: a slow link, small messages.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tools.hardware import Device
from tools.scenario.spec import ClosedModel
from tools.trace.alignment import SYNCHRONISING, AlignedCollectives
from tools.trace.links import Placement, bus_factor, bus_limit_bytes_per_s, domain_of, usual_s

LateCause = Literal["late_host", "data_loading", "slow_device", "imbalance", "slow_link"]
DEFAULT_DOMAIN = 8
"""Devices of a node, if the trace does not say which they are."""
_ALIKE_LATE = 0.8
"""Ranks with at least this share of the last rank's lateness are blamed alike."""
_TIMES_CHANCE = 2.0
_ALWAYS_OFTEN_RATIO = 0.6
_MIN_SHARE_OF_LATENESS = 0.05
_STRAGGLER_CAUSES = ("data loader", "host late: launches came late", "compute longer")
"""In the order of `AlignedCollectives.excess_ns`."""
_MIN_LARGE_BYTES = 4 << 20
_MAX_SMALL_BYTES = 1 << 20
_SLOW_LINK_RATIO = 0.35
"""Share of the link's bandwidth: a small message that reaches less is bound by latency."""
_SLOW_RATIO = 0.68
"""Share of what nccl-tests publish: healthy fabrics lie within 15% of it."""
_SLOW_ALONE_RATIO = 0.45
"""The same where one rank alone was profiled: the least of its transfers may still have waited."""
_PEER_RATIO = 0.83
"""Share of what the fastest quarter of the groups of the same shape reach in the same job."""
_EXPLAINED_RATIO = 0.25
"""What a rank did before explains its lateness if it is this much of it."""
_PASSED_ON_RATIO = 0.5
"""A rank whose collective before ended this much of its lateness later did not cause it."""
_MIN_REPEATS = 3
_STEADY_RATIO = 1.25
"""How far apart the faster half of a link's transfers lies; waiting for a late rank varies more. Set by the
recorded traces that `make bench NAME=faults` judges."""
MAX_LATENESS_COLUMNS = 120
MAX_LATE = 20


class CauseTimes(ClosedModel):
    """Time beyond the other ranks' before the collectives that a straggler was last at."""

    loader_us: float
    host_us: float
    compute_us: float

    @property
    def is_host(self) -> bool:
        """Whether loading or late launches, not computing, made the rank late."""
        host_us = max(self.loader_us, self.host_us)
        return host_us > 0 and host_us >= self.compute_us


class Straggler(ClosedModel):
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
    excess_ns: NDArray[np.float64] = field(default_factory=lambda: np.zeros(3))
    """By cause: more than the others, before the collectives it was last at."""


def find_stragglers(aligned: Sequence[AlignedCollectives]) -> list[Straggler]:
    """Worst first; empty if no rank stands out or only one was profiled."""
    arrivals: dict[int, _Arrivals] = defaultdict(_Arrivals)
    synchronising = [group for group in aligned if group.is_synchronising]
    for group in synchronising:
        last = group.aligned_starts_ns.argmax(axis=0)
        in_order_ns = np.sort(group.aligned_starts_ns, axis=0)
        late_ns = in_order_ns[-1] - in_order_ns[-2]
        for row, rank in enumerate(group.ranks):
            counted, columns = arrivals[rank], np.flatnonzero(last == row)
            counted.collectives += len(last)
            counted.last += len(columns)
            counted.late_ns += int(late_ns[columns].sum())
            counted.excess_ns += np.maximum(group.excess_ns[row, columns, :3], 0.0).sum(axis=0)
    all_late_ns = sum(counted.late_ns for counted in arrivals.values())
    if not all_late_ns:
        return []
    often = min(_TIMES_CHANCE / max(len(group.ranks) for group in synchronising), _ALWAYS_OFTEN_RATIO)
    stragglers = []
    for rank, counted in arrivals.items():
        loader_ns, host_ns, compute_ns = counted.excess_ns.tolist()
        # Loading data leaves the device idle too: what the loader explains does not count as late launches.
        excess_ns = (loader_ns, max(0.0, host_ns - loader_ns), compute_ns)
        cause = _STRAGGLER_CAUSES[int(np.argmax(excess_ns))] if any(excess_ns) else "not shown by the trace"
        straggler = Straggler(
            rank=rank,
            arrives_last_ratio=round(counted.last / counted.collectives, 4),
            late_by_us=counted.late_ns / max(counted.last, 1) / 1000,
            late_total_us=counted.late_ns / 1000,
            share_of_lateness=round(counted.late_ns / all_late_ns, 4),
            cause=cause,
            cause_us=CauseTimes(
                loader_us=excess_ns[0] / 1000, host_us=excess_ns[1] / 1000, compute_us=excess_ns[2] / 1000
            ),
        )
        is_often = straggler.arrives_last_ratio >= often
        if is_often and straggler.share_of_lateness >= _MIN_SHARE_OF_LATENESS:
            stragglers.append(straggler)
    return sorted(stragglers, key=lambda straggler: (-straggler.arrives_last_ratio, straggler.rank))


class Lateness(ClosedModel):
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
    blocks, firsts_ns = [], []
    for group in synchronising:
        first_ns = group.aligned_starts_ns.min(axis=0)
        block = np.full((len(ranks), len(first_ns)), np.nan)
        block[[ranks.index(rank) for rank in group.ranks]] = (group.aligned_starts_ns - first_ns) / 1000
        blocks.append(block)
        firsts_ns.append(first_ns)
    in_order = np.argsort(np.concatenate(firsts_ns), kind="stable")
    every_us = np.concatenate(blocks, axis=1)[:, in_order]
    # Means of neighbours: at most as many columns as a figure can show.
    parts = np.array_split(every_us, min(MAX_LATENESS_COLUMNS, every_us.shape[1]), axis=1)
    sums = np.stack([np.nansum(part, axis=1) for part in parts], axis=1)
    counts = np.stack([np.sum(~np.isnan(part), axis=1) for part in parts], axis=1)
    means_us = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    late_us = [[None if np.isnan(us) else round(float(us), 2) for us in row] for row in means_us]
    return Lateness(ranks=ranks, late_us=late_us)


class LateCollective(ClosedModel):
    """A collective that waited long for one rank."""

    kind: str
    group: str
    rank: int
    late_us: float
    """After the first rank that entered it."""
    start_us: float
    """When the late rank entered it, on its own clock."""


def find_latest(aligned: Sequence[AlignedCollectives]) -> list[LateCollective]:
    """Those that waited longest for their last rank, longest first."""
    found = []
    for group in aligned:
        if group.is_synchronising:
            starts_ns = group.aligned_starts_ns
            late_ns, last = np.ptp(starts_ns, axis=0), starts_ns.argmax(axis=0)
            found += [
                LateCollective(
                    kind=group.kind,
                    group=group.group,
                    rank=group.ranks[last[column]],
                    late_us=round(float(late_ns[column]) / 1000, 2),
                    start_us=float(group.start_ns[last[column], column]) / 1000,
                )
                for column in np.argsort(-late_ns, kind="stable")[:MAX_LATE].tolist()
            ]
    return sorted(found, key=lambda late: -late.late_us)[:MAX_LATE]


@dataclass(frozen=True)
class GroupWaits:
    """Whom the ranks of a group waited for in one kind, and what the transfers suffered from."""

    waiting_ratios: dict[int, float]
    blame: Mapping[tuple[LateCause, int], float]
    """Shares of all waiting, by cause and late rank; what is left is not explained."""
    slow_link: float
    small: float
    """Shares of the transfer time."""
    reached: float | None
    """Share of what nccl-tests publish, or what its fastest peers reach, that large messages reach."""
    is_beside_peers: bool = False


class UnusualRanks(NamedTuple):
    """Ranks that differ from the others over the whole trace, not only before one collective."""

    slow: Collection[int]
    """Their device is slow."""
    busier: Collection[int]
    """They compute more."""
    idler: Collection[int]
    """Their device idles more."""


@dataclass
class _Transfers:
    """What the transfers of one group suffer from."""

    slow_ns: float = 0.0
    """All that large messages lost."""
    small_ns: float = 0.0
    reached: float | None = None
    is_beside_peers: bool = False


def measure_waits(
    aligned: Sequence[AlignedCollectives], device: Device | None, unusual: UnusualRanks
) -> list[GroupWaits]:
    """For each group."""
    transfers = _judge_transfers(aligned, device)
    blames = _blame(aligned, transfers, unusual)
    found = []
    for group, suffered, blame in zip(aligned, transfers, blames, strict=True):
        all_ns = max(float(group.transfer_ns.sum()), 1.0)
        found.append(
            GroupWaits(
                group.waiting_ratios,
                blame,
                min(suffered.slow_ns / all_ns, 1.0),
                suffered.small_ns / all_ns,
                suffered.reached,
                suffered.is_beside_peers,
            )
        )
    return found


def _judge_transfers(aligned: Sequence[AlignedCollectives], device: Device | None) -> list[_Transfers]:
    """Large messages beside what nccl-tests publish for such links, and beside groups of the same shape."""
    domain = domain_of(device) if device is not None else DEFAULT_DOMAIN
    judged = [_Transfers() for _ in aligned]
    typical_ns: dict[tuple[bool, str, int, Placement], dict[int, float]] = defaultdict(dict)
    for number, group in enumerate(aligned):
        is_pair = group.kind == "send_recv" and len(group.ranks) == 2 == group.group_size
        if not group.group_size or group.group_size < 2 or (group.kind not in SYNCHRONISING and not is_pair):
            continue
        for size in np.unique(group.sizes_bytes[group.sizes_bytes > 0]).tolist():
            own_ns = group.transfer_ns[group.sizes_bytes == size]
            # Members that were not profiled may have come late to each, but never by the same time.
            is_whole, least_ns = len(group.ranks) == group.group_size, float(own_ns.min())
            if is_whole or len(own_ns) >= _MIN_REPEATS:
                typical = float(np.median(own_ns))
                is_unsteady = not is_whole and typical > _STEADY_RATIO * least_ns
                key = is_unsteady, group.kind, size, group.place(domain)
                typical_ns[key][number] = max(typical if is_whole else least_ns, 1.0)
    slow_places: set[Placement] = set()
    for (is_unsteady, kind, size, place), by_group in sorted(typical_ns.items(), key=lambda item: item[0][0]):
        if is_unsteady and place not in slow_places:
            continue
        usual_ns = usual_s(device, kind, place, size) * 1e9 if device is not None else None
        best_ns = float(np.quantile([*by_group.values()], 0.25, method="lower"))
        for number, own_ns in by_group.items():
            suffered, count = judged[number], int((aligned[number].sizes_bytes == size).sum())
            slow_ratio = _SLOW_RATIO if len(aligned[number].ranks) > 1 else _SLOW_ALONE_RATIO
            by_usual = usual_ns / own_ns if usual_ns else 1.0
            if size <= _MAX_SMALL_BYTES:
                is_small = (
                    device is not None
                    and by_usual_link(device, kind, place, size) / own_ns < _SLOW_LINK_RATIO
                )
                suffered.small_ns += own_ns * count if is_small else 0.0
            elif size >= _MIN_LARGE_BYTES:
                beside_peers = len(by_group) > 1 and best_ns / own_ns < _PEER_RATIO
                ratio = best_ns / own_ns if beside_peers else by_usual
                suffered.reached = min(ratio, suffered.reached or np.inf)
                if beside_peers or by_usual < slow_ratio:
                    suffered.slow_ns += own_ns * count * (1 - min(ratio, by_usual))
                    suffered.is_beside_peers |= beside_peers
                    slow_places.add(place)
    return judged


def by_usual_link(device: Device, kind: str, place: Placement, size: int) -> float:
    """Nanoseconds at the links' full rate, without any latency."""
    return size * bus_factor(kind, place.size) / bus_limit_bytes_per_s(device, kind, place) * 1e9


def _blame(
    aligned: Sequence[AlignedCollectives], transfers: Sequence[_Transfers], unusual: UnusualRanks
) -> list[dict[tuple[LateCause, int], float]]:
    """Shares of each group's waiting, by what the ranks that came last did before.

    A rank that only came out late of the collective before passes the blame on: to that transfer if it was
    slow, else to whom that collective had waited for.
    """
    place_of = {
        id(event): (number, column)
        for number, group in enumerate(aligned)
        for row in group.events
        for column, event in enumerate(row)
    }
    due = [(end, number, column) for number, group in enumerate(aligned) if group.is_synchronising
           for column, end in enumerate(np.median(group.end_ns, axis=0).tolist())]  # fmt: skip
    resolved: dict[tuple[int, int], dict[tuple[LateCause, int], float]] = {}
    totals: list[dict[tuple[LateCause, int], float]] = [defaultdict(float) for _ in aligned]
    waiting = [None if group.waiting_ns is None else group.waiting_ns.sum(axis=0) for group in aligned]
    for _, number, column in sorted(due):
        group, waited = aligned[number], waiting[number]
        if waited is None or not waited[column]:
            continue
        durations_ns = group.duration_ns[:, column]
        late_ns = durations_ns.max() - durations_ns
        blamed = np.flatnonzero(late_ns >= _ALIKE_LATE * late_ns.max()).tolist()
        shares: dict[tuple[LateCause, int], float] = defaultdict(float)
        for row in blamed:
            rank = group.ranks[row]
            loader, host, compute, before, late = group.excess_ns[row, column].tolist()
            host -= max(loader, 0.0)
            if before > max(loader, host, compute, _PASSED_ON_RATIO * late_ns[row]):
                event = group.before.get(id(group.events[row][column]))
                earlier = place_of.get(id(event))
                if earlier is not None:
                    then = transfers[earlier[0]]
                    lost_ns = then.slow_ns / max(aligned[earlier[0]].transfer_ns.shape[0], 1)
                    mine = waiting[earlier[0]]
                    waited_ns = 0.0 if mine is None else mine[earlier[1]] / len(aligned[earlier[0]].ranks)
                    if lost_ns > waited_ns:
                        shares["slow_link", -1] += 1 / len(blamed)
                    else:
                        for key, share in resolved.get(earlier, {}).items():
                            shares[key] += share / len(blamed)
                continue
            if cause := _own_cause(rank, loader, host, compute, late, unusual):
                shares[cause, rank] += 1 / len(blamed)
        resolved[number, column] = shares
        for key, share in shares.items():
            totals[number][key] += share * waited[column] / max(float(waited.sum()), 1.0)
    return totals


def _own_cause(
    rank: int, loader: float, host: float, compute: float, late: float, unusual: UnusualRanks
) -> LateCause | None:
    """What made a rank late, by what it did more than the others before; None if that does not explain it."""
    if max(loader, host, compute) < _EXPLAINED_RATIO * late:
        return None
    if loader > 0 and loader >= max(host, compute):
        return "data_loading"
    if compute <= max(host, 0.0):
        return "late_host"
    if rank in unusual.slow:
        return "slow_device"
    if rank in unusual.busier:
        return "imbalance"
    # The same work at another time: its host was late before.
    return "late_host" if rank in unusual.idler else None
