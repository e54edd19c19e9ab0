"""Time in collectives by kind and group."""

import numpy as np

from tools.trace.collectives import CollectiveEvent, time_exposed_kinds, time_groups
from tools.trace.record import cover

COMPUTE = cover(np.array([0, 100]), np.array([50, 150]))


def _event(kind: str, ranks: tuple[int, ...], start_ns: int, end_ns: int) -> CollectiveEvent:
    return CollectiveEvent(kind, "g", ranks, len(ranks), 8, start_ns, end_ns, 0, 0, 0)


def test_each_group_has_its_own_time_and_exposure() -> None:
    events = [
        _event("all_reduce", (0, 1), 40, 60),
        _event("all_reduce", (0, 2), 60, 110),
        _event("all_reduce", (0, 1), 110, 120),
    ]
    found = {one.ranks: (one.time_ns, one.exposed_ns) for one in time_groups(events, COMPUTE)}
    assert found == {(0, 1): (30, 10), (0, 2): (50, 40)}


def test_a_kind_counts_time_shared_by_two_groups_once() -> None:
    events = [_event("send_recv", (0, 1), 50, 80), _event("send_recv", (0, 2), 60, 90)]
    assert time_exposed_kinds(events, COMPUTE) == {"send_recv": 40}


def test_no_collectives_are_no_groups() -> None:
    assert time_groups([], COMPUTE) == []
