"""All ranks at a glance, packed for a browser: what filled each stretch of every rank, and its collectives.

Little-endian: the length of a JSON header, the header (`OverviewHeader`, padded to four bytes with spaces);
for every rank `stretches` bytes of compute, of transfer, of waiting and of copies, in 255ths; then for every
group its starts, durations and waiting times: ranks x collectives of 32-bit numbers that count `unit_ns`, the
starts since the rank's own first event.
"""

from collections import defaultdict
from collections.abc import Sequence

import msgspec
import numpy as np

from tools.trace.alignment import AlignedCollectives
from tools.trace.rank_profile import RankProfile
from tools.trace.record import Integers, cover
from tools.trace.timeline import LARGEST, framed

MAX_MEETINGS = 400_000
"""Ranks times collectives. Beyond, those that waited longest are kept."""
_WHOLE = 1000
"""Timelines count in thousandths."""


class OverviewRank(msgspec.Struct, frozen=True):
    rank: int
    file: str
    start_us: float
    """On the rank's own clock."""
    ahead_us: float
    """What its clock is ahead of those it shares collectives with."""
    span_us: float
    waiting: float
    """Share of its time."""
    step_us: float | None
    """When its first step that is no warm-up began."""


class OverviewGroup(msgspec.Struct, frozen=True):
    kind: str
    group: str
    rows: list[int]
    """Places in `ranks`."""
    count: int


class OverviewHeader(msgspec.Struct, frozen=True):
    unit_ns: int
    stretches: int
    ranks: list[OverviewRank]
    groups: list[OverviewGroup]


def pack_overview(profiles: Sequence[RankProfile], aligned: Sequence[AlignedCollectives]) -> bytes:
    """The overview of the ranks that have a timeline, packed."""
    drawn = {profile.rank: timeline for profile in profiles if (timeline := profile.timeline) is not None}
    place = {rank: row for row, rank in enumerate(drawn)}
    groups = [group for group in aligned if group.is_synchronising and place.keys() >= set(group.ranks)]
    waits: dict[int, list[Integers]] = defaultdict(list)
    """By rank, starts and ends."""
    for group in groups:
        waiting_ns = group.duration_ns - group.transfer_ns
        for row, rank in enumerate(group.ranks):
            waits[rank].append(np.stack([group.start_ns[row], group.start_ns[row] + waiting_ns[row]]))
    ahead_ns, ranks, cells = clocks_ahead_ns(groups), list[OverviewRank](), list[Integers]()
    stretches = max((len(timeline.compute) for timeline in drawn.values()), default=0)
    for profile in profiles:
        if (timeline := drawn.get(profile.rank)) is None:
            continue
        edges = np.linspace(timeline.start_ns, timeline.end_ns, stretches + 1).astype(np.int64)
        starts, ends = np.concatenate([np.zeros((2, 0), np.int64), *waits[profile.rank]], axis=1)
        covered = cover(starts, ends)
        exposed = np.array(timeline.exposed_communication)
        waited = covered.between(edges[:-1], edges[1:]) * _WHOLE // np.maximum(np.diff(edges), 1)
        waited = np.minimum(waited, exposed)  # what computing hides costs nothing
        cells.append(np.stack([timeline.compute, exposed - waited, waited, timeline.memory]) * 255 // _WHOLE)
        first = next((step.start_ns for step in profile.steps if not step.is_warm_up), None)
        ranks.append(
            OverviewRank(
                rank=profile.rank,
                file=profile.file,
                start_us=timeline.start_ns / 1000,
                ahead_us=ahead_ns.get(profile.rank, 0) / 1000,
                span_us=(timeline.end_ns - timeline.start_ns) / 1000,
                waiting=float(waited.mean()) / _WHOLE,
                step_us=None if first is None else first / 1000,
            )
        )
    longest_ns = max((timeline.end_ns - timeline.start_ns for timeline in drawn.values()), default=0)
    unit_ns = longest_ns // LARGEST + 1
    kept, columns = list[OverviewGroup](), list[Integers]()
    for group, chosen in zip(groups, _longest_waits(groups), strict=True):
        own_start = np.array([[drawn[rank].start_ns] for rank in group.ranks])
        waiting_ns = group.duration_ns - group.transfer_ns
        rows = [place[rank] for rank in group.ranks]
        kept.append(OverviewGroup(group.kind, group.group, rows, len(chosen)))
        columns += [
            part[:, chosen] // unit_ns for part in (group.start_ns - own_start, group.duration_ns, waiting_ns)
        ]
    header = OverviewHeader(unit_ns, stretches, ranks, kept)
    return framed(
        header,
        *(cell.astype(np.uint8).tobytes() for cell in cells),
        *(np.clip(column, 0, LARGEST).astype(np.uint32).tobytes() for column in columns),
    )


def _longest_waits(groups: Sequence[AlignedCollectives]) -> list[Integers]:
    """The collectives to keep of each group: all, or those that waited longest."""
    longest_ns = [np.ptp(group.duration_ns, axis=0) for group in groups]
    if not groups:
        return []
    all_ns = np.concatenate(longest_ns)
    sizes = np.concatenate(
        [np.full(len(ns), len(group.ranks)) for group, ns in zip(groups, longest_ns, strict=True)]
    )
    in_order = np.argsort(-all_ns, kind="stable")
    is_kept = np.zeros(len(all_ns), dtype=bool)
    is_kept[in_order[np.cumsum(sizes[in_order]) <= MAX_MEETINGS]] = True
    return [
        np.flatnonzero(part) for part in np.split(is_kept, np.cumsum([len(ns) for ns in longest_ns])[:-1])
    ]


def clocks_ahead_ns(groups: Sequence[AlignedCollectives]) -> dict[int, int]:
    """From group to group over the ranks they share: ranks leave a collective together."""
    of_rank: dict[int, list[AlignedCollectives]] = defaultdict(list)
    for group in groups:
        for rank in group.ranks:
            of_rank[rank].append(group)
    ahead_ns: dict[int, int] = {}
    for first in of_rank:
        ahead_ns.setdefault(first, 0)
        reached = [first]
        while reached:
            rank = reached.pop()
            for group in of_rank[rank]:
                new = [row for row, other in enumerate(group.ranks) if other not in ahead_ns]
                own = group.end_ns[group.ranks.index(rank)]
                for row in new:
                    ahead_ns[group.ranks[row]] = ahead_ns[rank] + int(np.median(group.end_ns[row] - own))
                    reached.append(group.ranks[row])
    return ahead_ns
