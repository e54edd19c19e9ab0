"""Collectives across ranks: transfer and waiting, stragglers, lateness, pipeline stages."""

import numpy as np
import pytest

from tests.unit.trace.builders import MS, collective, rank_profile
from tools.hardware import get_device
from tools.scenario.spec import ClusterSpec
from tools.trace.alignment import align, analyse_pipeline, summarise
from tools.trace.breakdown import Breakdown
from tools.trace.collectives import CollectiveEvent
from tools.trace.links import SlowGroup, device_of, domain_of, locate, place_ranks, usual_s
from tools.trace.rank_profile import RankProfile
from tools.trace.waits import Lateness, find_stragglers, measure_lateness


def _rank(rank: int, *spans_ms: tuple[float, float], ranks: tuple[int, ...] | None = None) -> RankProfile:
    events = [collective(round(start * MS), round(end * MS), ranks) for start, end in spans_ms]
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


def test_one_rank_alone_and_traces_of_different_runs_cannot_tell_waiting() -> None:
    (entry,) = summarise(align([_rank(0, (0, 5))]))
    assert (entry.waiting_us, entry.transfer_is_upper_bound) == (None, True)
    ranks = [_rank(rank, *((i * gap, i * gap + 1) for i in range(6))) for rank, gap in enumerate((100, 170))]
    assert [group.waiting_ns for group in align(ranks)] == [None, None]


H100, A100 = get_device("h100-sxm-80gb"), get_device("a100-sxm-80gb")


@pytest.mark.parametrize(
    ("ranks", "group_size", "kind", "limit_gbytes_per_s"),
    [
        ((0, 1), 2, "all_reduce", 300),
        ((8, 9, 10), 3, "all_reduce", 300),
        ((0, 8), 2, "all_reduce", 25),
        ((7, 8), 2, "all_reduce", 25),
        # Two of each node: two cards side by side, and half of the message crosses.
        ((0, 1, 8, 9), 4, "all_gather", 2 * 25 * 2 * 3 / 4),
        # Eight cards of each of eight nodes.
        (tuple(range(64)), 64, "reduce_scatter", 8 * 25 / (7 / 8) * 63 / 64),
        # An exchange: eight of the fifteen parts leave the node, by the sender's own card.
        (tuple(range(16)), 16, "all_to_all", 25 * 15 / 8),
        (None, 8, "all_reduce", 300),
        (None, 64, "all_reduce", 8 * 25 / (7 / 8) * 63 / 64),
        (None, None, "all_reduce", 300),
    ],
)
def test_a_group_is_set_beside_all_the_links_that_it_crosses(
    ranks: tuple[int, ...] | None, group_size: int | None, kind: str, limit_gbytes_per_s: float
) -> None:
    """However many ranks the whole job has."""
    event = collective(0, MS, ranks, kind=kind, group_size=group_size)
    (entry,) = summarise(align([rank_profile(collectives=[event])]), A100)
    assert entry.link_gbytes_per_s == pytest.approx(limit_gbytes_per_s)


def test_nodes_are_as_large_as_the_scenario_says() -> None:
    """Four ranks of hosts with one device each were two hosts of two, whose ring has two cards."""
    four = ClusterSpec(device="h100-sxm-80gb", num_devices=16, devices_per_node=4)
    assert domain_of(device_of(four)) == 4
    assert domain_of(device_of(four.model_copy(update={"device": "gb200"}))) == 72


def test_a_healthy_network_of_eight_cards_is_not_faster_than_its_link() -> None:
    """360 GB/s on the bus of two nodes of H100 (nccl-tests) once stood beside the 50 of one card."""
    size = 10**9
    event = collective(0, round(size * 15 / 16 / 360), tuple(range(16)), kind="all_gather", size=size)
    profiles = [rank_profile(rank, collectives=[event]) for rank in range(16)]
    (entry,) = summarise(align(profiles), H100)
    assert entry.bus_bandwidth_gbytes_per_s == pytest.approx(360, rel=1e-3)
    assert entry.link_gbytes_per_s == 450  # the cards of a node would carry 750: NVLink limits


@pytest.mark.parametrize(
    ("kind", "ranks", "published"),
    [
        ("all_gather", 16, 328.58),
        ("all_gather", 64, 293.71),
        ("all_gather", 256, 262.77),
        ("all_to_all", 64, 49.63),
    ],
)
def test_the_usual_time_of_a_collective_is_that_of_nccl_tests(
    kind: str, ranks: int, published: float
) -> None:
    """2 GiB on p5.48xlarge (crazyguitar/aws-gpu-communication-benchmark@fd167f97, data/)."""
    size = 2.0**31
    seconds = usual_s(H100, kind, place_ranks(range(ranks), ranks, 8), size)
    assert size * (ranks - 1) / ranks / seconds / 1e9 == pytest.approx(published, rel=0.1)


def _groups(slow: set[int], *families: list[tuple[int, ...]]) -> list[SlowGroup]:
    """A group is slow if it has a rank with a slow card."""
    members = [ranks for family in families for ranks in family]
    return [SlowGroup(each, place_ranks(each, len(each), 8), bool(slow & {*each})) for each in members]


RAILS = [tuple(range(local, 32, 8)) for local in range(8)]
PAIRS = [tuple(range(16)), tuple(range(16, 32))]
WORLD = [tuple(range(32))]


@pytest.mark.parametrize(
    ("slow", "families", "level", "ranks"),
    [
        ({19}, (WORLD,), "network", []),
        ({19}, (RAILS,), "rail", [3, 11, 19, 27]),
        ({19}, (RAILS, PAIRS), "rail", [19, 27]),
        ({19}, (RAILS, PAIRS, [(0, 19), (1, 27)]), "card", [19]),
        ({3, 11, 19, 27}, (RAILS, PAIRS), "rail", [3, 11, 19, 27]),
        (set(range(16, 24)), (RAILS, PAIRS), "node pair", list(range(16, 32))),
        ({0, 1, 2, 3, 4, 5, 6, 7}, (RAILS, [tuple(range(8))]), "network", []),
        (set(range(32)), (RAILS[:1], [tuple(range(8))]), "network", []),
        ({3, 11, 19, 27}, (RAILS[3:4], PAIRS[:1], [tuple(range(8))]), "network", []),
    ],
)
def test_the_slow_part_of_the_network_is_where_slow_groups_meet(
    slow: set[int], families: tuple[list[tuple[int, ...]], ...], level: str, ranks: list[int]
) -> None:
    found = locate(_groups(slow, *families), 8)
    assert (found.level, found.ranks) == (level, ranks)


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
    assert (straggler.rank, straggler.arrives_last_ratio) == (2, 1.0)
    assert straggler.late_by_us == pytest.approx(5000, rel=0.01)
    assert straggler.cause.startswith(cause)


def test_nobody_is_named_when_the_ranks_take_turns_or_one_was_profiled() -> None:
    assert find_stragglers(align(_run(None))) == find_stragglers(align(_run(0, num_ranks=1))) == []


def _late(*late_us: float, ranks: tuple[int, int], start_ms: int = 0) -> list[RankProfile]:
    """Two ranks; the second comes to each collective so much later than the first."""
    times = [(start_ms + i, us) for i, us in enumerate(late_us)]
    return [
        _rank(rank, *((ms + is_late * us / 1000, ms + us / 1000 + 0.005) for ms, us in times), ranks=ranks)
        for is_late, rank in enumerate(ranks)
    ]


def test_lateness_is_the_time_after_the_first_arrival_in_each_ranks_own_groups() -> None:
    profiles = [*_late(7, 0, 30, ranks=(0, 1)), *_late(3, 0, ranks=(5, 6), start_ms=1000)]
    expected = [[0, 0, 0, None, None], [7, 0, 30, None, None], [None] * 3 + [0, 0], [None] * 3 + [3, 0]]
    assert measure_lateness(align(profiles)) == Lateness(ranks=[0, 1, 5, 6], late_us=expected)
    assert measure_lateness([]) is None


def _stage(rank: int, compute_ns: int, exchanged_ns: int | None) -> RankProfile:
    exposed = {} if exchanged_ns is None else {"send_recv": exchanged_ns}
    return rank_profile(rank, Breakdown(compute_ns=compute_ns, total_ns=100), exposed_by_kind_ns=exposed)


def test_bubble_and_imbalance_are_over_all_stages_that_send_and_receive() -> None:
    result = analyse_pipeline([_stage(0, 60, 10), _stage(1, 20, 50), _stage(2, 90, None)])
    assert result is not None
    assert result.bubble_ratio == pytest.approx(0.3)
    assert result.imbalance_ratio == pytest.approx(0.5)
    assert (result.slowest_rank, result.ranks) == (0, [0, 1])
    assert analyse_pipeline([_stage(0, 60, None), _stage(1, 20, None)]) is None
