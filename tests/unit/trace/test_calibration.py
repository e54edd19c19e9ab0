"""Figures of the cluster, taken from a trace."""

import pytest

from tools.hardware import get_device
from tools.trace.breakdown import Breakdown
from tools.trace.calibrate import ClusterMeasurements, large_products, measure_cluster
from tools.trace.collectives import CollectiveEvent
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint

DEVICE = get_device("a100-sxm-80gb")


def _product(flops: float, op: str = "aten::mm", precision: str = "bf16", moved: float = 1e-3) -> RoofPoint:
    return RoofPoint(op, "m×n×k", precision, 1, 1000, flops, flops * moved)


def _rank(rank: int, events: list[CollectiveEvent]) -> RankProfile:
    terms = Breakdown(communication_ns=100, exposed_communication_ns=25, total_ns=1000)
    return RankProfile(file="f", rank=rank, basis="device", breakdown=terms, collectives=events)


def _collective(ranks: tuple[int, ...], size: int, start_ns: int, end_ns: int) -> CollectiveEvent:
    return CollectiveEvent("all_reduce", "g", ranks, len(ranks), size, start_ns, end_ns, 0, 0, 0)


def test_products_that_are_small_or_wait_for_memory_say_nothing_of_the_arithmetic_rate() -> None:
    large = _product(1e12)
    others = [
        _product(1e6),
        _product(1e12, moved=1.0),
        _product(1e12, precision="fp32"),
        _product(1e12, op="aten::_flash_attention_forward"),
    ]
    assert large_products([large, *others], DEVICE, "bf16") == [large]
    assert large_products([large], DEVICE, "nvfp4") == []


@pytest.mark.parametrize(("ranks", "inside"), [((0, 1), True), ((0, 8), False)])
def test_links_inside_and_across_nodes_are_told_apart(ranks: tuple[int, int], inside: bool) -> None:
    early = _rank(ranks[0], [_collective(ranks, 10**8, 0, 20_000_000)])
    late = _rank(ranks[1], [_collective(ranks, 10**8, 19_000_000, 20_000_000)])
    measured = measure_cluster([early, late], DEVICE)
    found = measured.intra_node_bytes_per_s if inside else measured.inter_node_bytes_per_s
    assert found == pytest.approx(10**8 / 1e-3)
    assert (measured.inter_node_bytes_per_s if inside else measured.intra_node_bytes_per_s) is None


def test_small_messages_say_nothing_of_the_link() -> None:
    ranks = [_rank(rank, [_collective((0, 1), 1000, 0, 5000)]) for rank in (0, 1)]
    assert measure_cluster(ranks, DEVICE).intra_node_bytes_per_s is None


def test_the_network_cards_of_a_node_work_side_by_side() -> None:
    ranks = tuple(range(16))
    profiles = [_rank(rank, [_collective(ranks, 10**8, 0, 10_000_000)]) for rank in ranks]
    reached = measure_cluster(profiles, DEVICE).inter_node_bytes_per_s
    # an all-reduce sends the message twice; half of it crosses, over the eight cards of a node
    assert reached == pytest.approx(2 * 10**8 / 2 / 8 / 10e-3)


def test_nothing_measured_is_nothing_claimed() -> None:
    profile = RankProfile(file="f", basis="device", breakdown=Breakdown())
    assert measure_cluster([profile], DEVICE) == ClusterMeasurements()
