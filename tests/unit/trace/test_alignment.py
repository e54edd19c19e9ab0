"""Collectives across ranks: transfer and waiting, stragglers, lateness, pipeline stages."""

import numpy as np
import pytest

from tests.unit.trace.builders import MS, collective, rank_profile
from tools.hardware import get_device
from tools.trace.alignment import (
    MAX_LATENESS_COLUMNS,
    AlignedCollectives,
    Lateness,
    align,
    analyse_pipeline,
    bus_factor,
    find_stragglers,
    measure_lateness,
    summarise,
)
from tools.trace.breakdown import Breakdown
from tools.trace.collectives import CollectiveEvent
from tools.trace.rank_profile import RankProfile


def _rank(rank: int, *spans_ms: tuple[int, int]) -> RankProfile:
    events = [collective(start * MS, end * MS) for start, end in spans_ms]
    return rank_profile(rank, collectives=events)


@pytest.mark.parametrize("offset_ms", [0, 7000])
def test_the_last_to_arrive_shows_the_transfer_and_the_others_wait(offset_ms: int) -> None:
    """Clocks that differ by a constant do not matter."""
    early = _rank(0, (0, 10), (20, 25))
    late = _rank(1, (offset_ms + 8, offset_ms + 10), (offset_ms + 21, offset_ms + 25))
    (group,) = align([early, late])
    assert group.transfer_ns.tolist() == [2 * MS, 4 * MS]
    assert np.asarray(group.waiting_ns).tolist() == [[8 * MS, 1 * MS], [0, 0]]
    (entry,) = summarise([group])
    assert (entry.time_us, entry.transfer_us, entry.waiting_us) == (10_500, 6000, 4500)


def test_traces_of_different_runs_are_not_aligned() -> None:
    ranks = [_rank(rank, *((i * gap, i * gap + 1) for i in range(6))) for rank, gap in enumerate((100, 170))]
    assert [group.waiting_ns for group in align(ranks)] == [None, None]


def test_one_rank_alone_cannot_tell_waiting() -> None:
    (entry,) = summarise(align([_rank(0, (0, 5))]))
    assert entry.waiting_us is None
    assert entry.transfer_is_upper_bound


def test_a_trace_cut_at_the_front_is_aligned_at_the_end() -> None:
    gaps = [0, 7, 19, 23, 41]
    full = _rank(0, *((gap, gap + 2) for gap in gaps))
    cut = _rank(1, *((gap + 1, gap + 2) for gap in gaps[2:]))
    (group,) = align([full, cut])
    assert group.transfer_ns.tolist() == [MS] * 3


def test_groups_with_different_ranks_stay_apart() -> None:
    events = [collective(0, MS, (0, 1)), collective(5 * MS, 6 * MS, (0, 2))]
    assert sorted(group.group for group in align([rank_profile(collectives=events)])) == [
        "ranks 0,1",
        "ranks 0,2",
    ]


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("all_to_all", 0.875),
        ("broadcast", 1),
    ],
)
def test_bus_factors_are_those_of_nccl_tests(kind: str, factor: float) -> None:
    assert bus_factor(kind, 8) == factor


def test_bus_bandwidth_is_true_gigabytes_per_second() -> None:
    events = [collective(0, 10 * MS, size=10**9)]
    (entry,) = summarise(align([rank_profile(collectives=events)]))
    assert entry.bus_bandwidth_gbytes_per_s == pytest.approx(100.0)
    assert entry.link_gbytes_per_s is None


@pytest.mark.parametrize(
    ("ranks", "group_size", "inside"),
    [
        ((0, 1), 2, True),
        ((8, 9, 10), 3, True),
        ((0, 8), 2, False),
        ((7, 8), 2, False),
        (None, 8, True),
        (None, 16, False),
        (None, None, True),
    ],
)
def test_a_group_is_set_beside_the_link_that_it_crosses(
    ranks: tuple[int, ...] | None, group_size: int | None, inside: bool
) -> None:
    """However many ranks the whole job has."""
    device = get_device("a100-sxm-80gb")
    event = collective(0, MS, ranks, group_size=group_size)
    (entry,) = summarise(align([rank_profile(collectives=[event])]), device)
    link = device.intra_node_bytes_per_s if inside else device.inter_node_bytes_per_s
    assert entry.link_gbytes_per_s == link / 1e9


def test_no_size_gives_no_bandwidth() -> None:
    (entry,) = summarise(align([rank_profile(collectives=[collective(0, MS, size=None)])]))
    assert entry.bus_bandwidth_gbytes_per_s is None
    assert entry.message_bytes is None


def _run(
    late_rank: int | None, before: tuple[int, int, int] = (0, 0, 0), num_ranks: int = 4
) -> list[RankProfile]:
    """Twenty collectives; the late rank comes 5 ms after the others, which arrive microseconds apart."""

    def event(rank: int, number: int) -> CollectiveEvent:
        end = (number + 1) * 20 * MS
        if rank == late_rank:
            return collective(end - 2 * MS, end, group_size=num_ranks, before=before)
        return collective(end - 7 * MS - ((rank + number) % num_ranks) * 1000, end, group_size=num_ranks)

    return [
        rank_profile(rank, collectives=[event(rank, number) for number in range(20)])
        for rank in range(num_ranks)
    ]


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ((5 * MS, 0, 0), "compute longer"),
        ((0, 5 * MS, 0), "host late"),
        ((0, 5 * MS, 4 * MS), "data loader"),
        ((0, 0, 0), "not shown"),
    ],
)
def test_the_late_rank_is_named_with_what_it_was_doing(before: tuple[int, int, int], cause: str) -> None:
    (straggler,) = find_stragglers(align(_run(2, before)))
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


def _stage(rank: int, compute_ns: int, exchanged_ns: int | None) -> RankProfile:
    exposed = {} if exchanged_ns is None else {"send_recv": exchanged_ns}
    return rank_profile(rank, Breakdown(compute_ns=compute_ns, total_ns=100), exposed_by_kind_ns=exposed)


def test_bubble_and_imbalance_are_over_all_stages() -> None:
    result = analyse_pipeline([_stage(0, 60, 10), _stage(1, 20, 50)])
    assert result is not None
    assert result.bubble_ratio == pytest.approx(0.3)
    assert result.imbalance_ratio == pytest.approx(0.5)
    assert result.slowest_rank == 0


def test_without_send_and_receive_there_is_no_pipeline() -> None:
    assert analyse_pipeline([_stage(0, 60, None), _stage(1, 20, None)]) is None
