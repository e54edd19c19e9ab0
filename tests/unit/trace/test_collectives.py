"""Waiting told from transfer, bus bandwidth, and alignment over ranks."""

import numpy as np
import pytest

from tools.hardware import get_device
from tools.trace.alignment import align, bus_factor, summarise
from tools.trace.breakdown import Breakdown
from tools.trace.collectives import CollectiveEvent, count_elements
from tools.trace.rank_profile import RankProfile

MS = 1_000_000


def _event(
    start: int, end: int, size: int | None = 1000, ranks: tuple[int, ...] | None = None
) -> CollectiveEvent:
    return CollectiveEvent("all_reduce", None, ranks, 2, size, start, end, 0, 0, 0)


def _rank(rank: int, events: list[CollectiveEvent]) -> RankProfile:
    return RankProfile(file="f", rank=rank, basis="device", breakdown=Breakdown(), collectives=events)


def test_the_last_to_arrive_shows_the_transfer_and_the_others_wait() -> None:
    early = _rank(0, [_event(0, 10 * MS), _event(20 * MS, 25 * MS)])
    late = _rank(1, [_event(8 * MS, 10 * MS), _event(21 * MS, 25 * MS)])
    (one,) = align([early, late])
    assert one.transfer_ns.tolist() == [2 * MS, 4 * MS]
    assert np.asarray(one.waiting_ns).tolist() == [[8 * MS, 1 * MS], [0, 0]]
    (entry,) = summarise([one])
    assert entry.transfer_us == 6000
    assert entry.waiting_us == 4500
    assert entry.time_us == entry.transfer_us + entry.waiting_us


def test_clocks_that_differ_by_a_constant_do_not_matter() -> None:
    shift = 7_000 * MS
    early = _rank(0, [_event(0, 10 * MS), _event(20 * MS, 25 * MS)])
    late = _rank(1, [_event(8 * MS + shift, 10 * MS + shift), _event(21 * MS + shift, 25 * MS + shift)])
    (one,) = align([early, late])
    assert one.transfer_ns.tolist() == [2 * MS, 4 * MS]


def test_traces_of_different_runs_are_not_aligned() -> None:
    one = _rank(0, [_event(i * 100 * MS, i * 100 * MS + MS) for i in range(6)])
    other = _rank(1, [_event(i * 170 * MS, i * 170 * MS + MS) for i in range(6)])
    assert all(group.waiting_ns is None for group in align([one, other]))


def test_one_rank_alone_cannot_tell_waiting() -> None:
    (entry,) = summarise(align([_rank(0, [_event(0, 5 * MS)])]))
    assert entry.waiting_us is None
    assert entry.transfer_is_upper_bound


def test_a_trace_cut_at_the_front_is_aligned_at_the_end() -> None:
    gaps = [0, 7, 19, 23, 41]
    full = _rank(0, [_event(gap * MS, gap * MS + 2 * MS) for gap in gaps])
    cut = _rank(1, [_event(gap * MS + MS, gap * MS + 2 * MS) for gap in gaps[2:]])
    (one,) = align([full, cut])
    assert one.transfer_ns.tolist() == [MS] * 3


def test_groups_with_different_ranks_stay_apart() -> None:
    events = [_event(0, MS, ranks=(0, 1)), _event(5 * MS, 6 * MS, ranks=(0, 2))]
    assert sorted(one.group for one in align([_rank(0, events)])) == ["ranks 0,1", "ranks 0,2"]


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
    events = [CollectiveEvent("all_reduce", None, None, 2, 10**9, 0, 10 * MS, 0, 0, 0)]
    (entry,) = summarise(align([_rank(0, events)]))
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
    event = CollectiveEvent("all_reduce", None, ranks, group_size, 10**6, 0, MS, 0, 0, 0)
    (entry,) = summarise(align([_rank(0, [event])]), device)
    link = device.intra_node_bytes_per_s if inside else device.inter_node_bytes_per_s
    assert entry.link_gbytes_per_s == link / 1e9


def test_no_size_gives_no_bandwidth() -> None:
    (entry,) = summarise(align([_rank(0, [_event(0, MS, size=None)])]))
    assert entry.bus_bandwidth_gbytes_per_s is None
    assert entry.message_bytes is None


@pytest.mark.parametrize(
    ("dims", "elements"),
    [
        ([4, 5], 20),
        ([[4, 5], [2]], 22),
        ([], None),
        ("x", None),
        ([["a"]], None),
        ([-1], None),
        ([2**45], None),
    ],
)
def test_elements_are_counted_for_tensors_and_lists(dims: object, elements: int | None) -> None:
    assert count_elements(dims) == elements
