"""How long one rank spends in the collectives of each kind and group, and how much of that is exposed."""

from collections import defaultdict

import msgspec
import numpy as np

from tools.trace.collective_events import CollectiveEvent
from tools.trace.intervals import Coverage, cover, join


class GroupTime(msgspec.Struct, frozen=True):
    """All collectives of one kind in one group."""

    kind: str
    group_key: str
    group: str | None
    """The process group's name, where the trace has one."""
    ranks: tuple[int, ...] | None
    time_ns: int
    """Summed over the collectives."""
    exposed_ns: int
    """No computing beside; times of groups may overlap each other."""


def time_groups(collectives: list[CollectiveEvent], compute: Coverage) -> list[GroupTime]:
    """One entry per kind and group, in order of appearance."""
    sorted_out: dict[tuple[str, str], list[CollectiveEvent]] = defaultdict(list)
    for one in collectives:
        sorted_out[one.kind, one.group_key].append(one)
    return [
        GroupTime(
            kind=kind,
            group_key=key,
            group=events[0].group,
            ranks=events[0].ranks,
            time_ns=sum(event.duration_ns for event in events),
            exposed_ns=_exposed_ns(events, compute),
        )
        for (kind, key), events in sorted_out.items()
    ]


def time_exposed_kinds(collectives: list[CollectiveEvent], compute: Coverage) -> dict[str, int]:
    """Nanoseconds of each kind with no computing beside it, over all groups; kinds may overlap each other."""
    sorted_out: dict[str, list[CollectiveEvent]] = defaultdict(list)
    for one in collectives:
        sorted_out[one.kind].append(one)
    return {kind: _exposed_ns(events, compute) for kind, events in sorted_out.items()}


def _exposed_ns(events: list[CollectiveEvent], compute: Coverage) -> int:
    starts_ns = np.array([event.start_ns for event in events], dtype=np.int64)
    ends_ns = np.array([event.end_ns for event in events], dtype=np.int64)
    return join(compute, cover(starts_ns, ends_ns)).total_ns - compute.total_ns
