"""Whom the ranks of a group wait for and why, and what its transfers suffer: a slow link, small messages; the
collectives that waited longest."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tools.hardware import Device
from tools.scenario.spec import Result
from tools.trace.alignment import AlignedCollectives, aligned_starts_ns, bus_factor, link_bytes_per_s

ALIKE_LATE = 0.8
"""Of the last rank's lateness: who comes as late as this is blamed alike."""
LateCause = Literal["late_host", "data_loading", "slow_device", "imbalance"]


@dataclass(frozen=True)
class GroupWaits:
    """Of one kind in one group: whom the ranks waited for, and what the transfers suffered from."""

    waiting_ratio: dict[int, float]
    """By rank: the share of its time in these collectives that is waiting."""
    blame: dict[tuple[LateCause, int], float]
    """Shares of all waiting, by cause and late rank."""
    slow_link: float
    small: float
    """Shares of the transfer time."""
    reached: float | None
    """Of the link's bandwidth, by large messages."""


_MIN_LARGE_BYTES = 4 << 20
_MAX_SMALL_BYTES = 1 << 20
_SLOW_LINK_RATIO = 0.35
"""Of the link's nominal bandwidth; a healthy all-reduce of large messages reaches 60 to 90%."""
_USUAL_LINK_RATIO = 0.7
_MIN_REPEATS = 3


def measure_waits(group: AlignedCollectives, device: Device | None, slow: dict[int, float]) -> GroupWaits:
    durations = group.duration_ns
    waiting = group.waiting_ns
    ratio = {}
    blame: dict[tuple[LateCause, int], float] = {}
    if waiting is not None:
        time_ns = np.maximum(durations.sum(axis=1), 1)
        ratio = dict(zip(group.ranks, (waiting.sum(axis=1) / time_ns).tolist(), strict=True))
        blame = _blame(group, slow)
    link_excess_ns, small_ns, reached = _link_losses(group, device)
    transfer_ns = max(float(group.transfer_ns.sum()), 1.0)
    return GroupWaits(ratio, blame, link_excess_ns / transfer_ns, small_ns / transfer_ns, reached)


def _link_losses(group: AlignedCollectives, device: Device | None) -> tuple[float, float, float | None]:
    """Transfer time beyond a usual link's, that of small messages, and what large ones reach of the link."""
    if device is None or not group.group_size or group.group_size < 2:
        return 0.0, 0.0, None
    link = link_bytes_per_s(group, device)
    sizes = np.array([event.message_bytes or 0 for event in group.events[0]], dtype=np.float64)
    transfer_ns = group.transfer_ns
    excess_ns, small_ns, reached = 0.0, 0.0, None
    for size in np.unique(sizes[sizes > 0]).tolist():
        columns = np.flatnonzero(sizes == size)
        own_ns = transfer_ns[columns]
        # One rank alone cannot tell waiting from transfer, but no rank waits at every one of many repeats.
        typical_ns = float(np.median(own_ns)) if group.is_synchronising else float(own_ns.min())
        ideal_ns = size * bus_factor(group.kind, group.group_size) / link * 1e9
        sure = group.is_synchronising or len(columns) >= _MIN_REPEATS
        if typical_ns <= 0 or not sure:
            continue
        ratio = ideal_ns / typical_ns
        if size >= _MIN_LARGE_BYTES:
            reached = ratio if reached is None else min(reached, ratio)
            if ratio < _SLOW_LINK_RATIO:
                excess_ns += len(columns) * (typical_ns - ideal_ns / _USUAL_LINK_RATIO)
        elif size <= _MAX_SMALL_BYTES and ratio < _SLOW_LINK_RATIO:
            small_ns += typical_ns * len(columns)
    return excess_ns, small_ns, reached


def _blame(group: AlignedCollectives, slow: dict[int, float]) -> dict[tuple[LateCause, int], float]:
    """Shares of the group's waiting, by what the rank that came last did before."""
    waiting_ns = group.waiting_ns
    if waiting_ns is None:
        return {}
    shares = waiting_ns.sum(axis=0) / max(float(waiting_ns.sum()), 1.0)
    late_ns = group.duration_ns.max(axis=0) - group.duration_ns
    blame: dict[tuple[LateCause, int], float] = defaultdict(float)
    for column in np.flatnonzero(shares).tolist():
        rows = np.flatnonzero(late_ns[:, column] >= ALIKE_LATE * late_ns[:, column].max())
        for row in rows.tolist():
            cause = _cause_of_lateness(group, row, column, slow)
            blame[cause, group.ranks[row]] += float(shares[column]) / len(rows)
    return dict(blame)


def _cause_of_lateness(group: AlignedCollectives, row: int, column: int, slow: dict[int, float]) -> LateCause:
    own = group.events[row][column]
    others = [events[column] for index, events in enumerate(group.events) if index != row]
    loader = own.before_loader_ns - _median(event.before_loader_ns for event in others)
    host = own.before_host_ns - _median(event.before_host_ns for event in others) - max(loader, 0.0)
    compute = own.before_compute_ns - _median(event.before_compute_ns for event in others)
    if loader > 0 and loader >= max(host, compute):
        return "data_loading"
    if compute > max(host, 0.0):
        return "slow_device" if group.ranks[row] in slow else "imbalance"
    return "late_host"


def _median(values: Iterable[int]) -> float:
    return float(np.median(list(values)))


MAX_LATE = 20


class LateCollective(Result):
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
        if not group.is_synchronising:
            continue
        starts_ns = aligned_starts_ns(group)
        late_ns, last = starts_ns.max(axis=0) - starts_ns.min(axis=0), starts_ns.argmax(axis=0)
        for column in np.argsort(-late_ns, kind="stable")[:MAX_LATE].tolist():
            row = int(last[column])
            found.append(
                LateCollective(
                    kind=group.kind,
                    group=group.group,
                    rank=group.ranks[row],
                    late_us=round(float(late_ns[column]) / 1000, 2),
                    start_us=float(group.start_ns[row, column]) / 1000,
                )
            )
    return sorted(found, key=lambda late: -late.late_us)[:MAX_LATE]
