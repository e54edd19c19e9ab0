"""Who arrives last, and why."""

import numpy as np
import pytest

from tools.trace.alignment import (
    MAX_LATENESS_COLUMNS,
    AlignedCollectives,
    Lateness,
    align,
    find_stragglers,
    measure_lateness,
)
from tools.trace.breakdown import Breakdown
from tools.trace.collectives import CollectiveEvent
from tools.trace.rank_profile import RankProfile

MS = 1_000_000


def _run(late_rank: int | None, num_ranks: int = 4, **before: int) -> list[RankProfile]:
    """Twenty collectives; the late rank comes 5 ms after the others, which arrive microseconds apart."""
    profiles = []
    for rank in range(num_ranks):
        events = []
        for number in range(20):
            end = (number + 1) * 20 * MS
            arrival = (
                end - 2 * MS if rank == late_rank else end - 7 * MS - ((rank + number) % num_ranks) * 1000
            )
            done = before if rank == late_rank else {}
            events.append(
                CollectiveEvent(
                    "all_reduce",
                    None,
                    None,
                    num_ranks,
                    100,
                    arrival,
                    end,
                    done.get("compute", 0),
                    done.get("host", 0),
                    done.get("loader", 0),
                )
            )
        profiles.append(
            RankProfile(file=f"{rank}", rank=rank, basis="device", breakdown=Breakdown(), collectives=events)
        )
    return profiles


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ({"compute": 5 * MS}, "compute longer"),
        ({"host": 5 * MS}, "host late"),
        ({"host": 5 * MS, "loader": 4 * MS}, "data loader"),
        ({}, "not told"),
    ],
)
def test_the_late_rank_is_named_with_what_it_was_doing(before: dict[str, int], cause: str) -> None:
    (straggler,) = find_stragglers(align(_run(2, **before)))
    assert straggler.rank == 2
    assert straggler.arrives_last_ratio == 1.0
    assert straggler.late_by_us == pytest.approx(5000, rel=0.01)
    assert straggler.cause.startswith(cause)


def test_nobody_is_named_when_the_ranks_take_turns() -> None:
    assert find_stragglers(align(_run(None))) == []


def test_one_rank_alone_has_no_stragglers() -> None:
    assert find_stragglers(align(_run(0, num_ranks=1))) == []


def _aligned(starts_us: list[list[float]], ranks: list[int], shift_ns: int = 0) -> AlignedCollectives:
    starts = (np.array(starts_us) * 1000).astype(np.int64) + shift_ns
    ends = np.broadcast_to(starts.max(axis=0) + 5_000, starts.shape)
    return AlignedCollectives("all_reduce", "g", ranks, len(ranks), [], starts, ends)


def test_lateness_is_the_time_after_the_first_arrival() -> None:
    lateness = measure_lateness([_aligned([[0, 100, 200], [7, 100, 230]], [0, 1])])
    assert lateness == Lateness(ranks=[0, 1], late_us=[[0, 0, 0], [7, 0, 30]])


def test_many_collectives_become_means_of_neighbours() -> None:
    starts_us = [[float(10 * i) for i in range(1000)], [10.0 * i + 4 for i in range(1000)]]
    lateness = measure_lateness([_aligned(starts_us, [0, 1])])
    assert lateness is not None
    assert lateness.late_us == [[0.0] * MAX_LATENESS_COLUMNS, [4.0] * MAX_LATENESS_COLUMNS]


def test_a_rank_has_no_lateness_at_collectives_of_another_group() -> None:
    lateness = measure_lateness(
        [_aligned([[0, 50], [3, 50]], [0, 1]), _aligned([[0, 50], [3, 50]], [5, 6], 10**9)]
    )
    assert lateness is not None
    assert lateness.ranks == [0, 1, 5, 6]
    assert lateness.late_us[0] == [0.0, 0.0, None, None]


def test_without_synchronising_collectives_there_is_no_lateness() -> None:
    assert measure_lateness([]) is None
