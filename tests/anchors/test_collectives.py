"""Collectives against what was measured: nccl-tests on EFA and NVLink, DeepEP's table, slices of TPUs.

Constants are the priors: nothing here was fitted to these figures.
"""

import math
from dataclasses import replace

import pytest

from tests.unit.physics.scenes import DEEPSEEK_V3, number, scene
from tools.physics.collectives import all_to_all_s, gather_s, gather_transfer_s, place

GB, MIB = 1e9, 2.0**20
ONE = number(1.0)
EFA = scene(
    "mixtral-8x7b", devices=256, ep=8, batch=256, cluster={"fabric": "efa"}, moe_dispatcher="alltoall"
)


def bus_gbytes_per_s(ranks: int, size: float, seconds: float) -> float:
    return size / seconds * (ranks - 1) / ranks / GB


@pytest.mark.parametrize(
    ("ranks", "measured"), [(16, 79.25), (32, 54.07), (64, 49.63), (128, 44.23), (256, 40.78)]
)
def test_an_all_to_all_between_nodes_has_one_card_per_gpu(ranks: int, measured: float) -> None:
    """alltoall_perf of 2 GiB on p5.48xlarge, GB/s of bus bandwidth (data/nccl_alltoall.csv of
    crazyguitar/aws-gpu-communication-benchmark@fd167f97); awslabs/awsome-distributed-ai@95b939cd has 53.9 and
    51.1 of 32 and 64 ranks (ep-backend-comparison/RESULTS-p5.md). With all cards of a node for each rank's
    bytes, as rings have them, 64 ranks would reach 294."""
    spent_s = float(all_to_all_s(EFA.x, EFA.c, place(EFA.x, number(ranks), ONE), number(2048 * MIB), ONE))
    assert bus_gbytes_per_s(ranks, 2048 * MIB, spent_s) == pytest.approx(measured, rel=0.16)


def test_an_all_to_all_of_small_messages_falls_to_little_more_than_half_its_rate() -> None:
    """The same file, 64 ranks: 28.67 GB/s with 32 MiB (0.5 MiB to each peer), 0.58 of what 2 GiB reach.
    Without a size at half rate it would be 1."""
    group = place(EFA.x, number(64), ONE)
    large, small = (
        bus_gbytes_per_s(64, mib * MIB, float(all_to_all_s(EFA.x, EFA.c, group, number(mib * MIB), ONE)))
        for mib in (2048, 32)
    )
    assert small / large == pytest.approx(28.67 / 49.63, rel=0.1)


@pytest.mark.parametrize(
    ("ranks", "measured"), [(16, 328.58), (32, 330.92), (64, 293.71), (128, 265.15), (256, 262.77)]
)
def test_an_all_gather_uses_the_cards_of_a_node_side_by_side(ranks: int, measured: float) -> None:
    """all_gather_perf of 2 GiB on p5.48xlarge (data/nccl_all_gather.csv). A ring that leaves each node by one
    card would reach 50 GB/s, and one without a latency per rank the same at 16 and at 256."""
    spent_s = float(gather_s(EFA.x, EFA.c, place(EFA.x, number(ranks), ONE), number(2048 * MIB)))
    assert bus_gbytes_per_s(ranks, 2048 * MIB, spent_s) == pytest.approx(measured, rel=0.15)


def test_an_all_reduce_over_two_nodes_crosses_the_network_once() -> None:
    """all_reduce_perf of 2 GiB on two p4de.24xlarge, 50 GB/s a node: 78.33 GB/s of bus bandwidth
    (awsome-distributed-ai@95b939cd, micro-benchmarks/nccl-tests/README.md). A flat ring has at most 50."""
    slow = {"fabric": "efa", "overrides": {"inter_node_gbps_per_device": 50.0}}
    s = scene("llama-3.1-8b", device="a100-sxm-80gb", devices=16, batch=16, cluster=slow)
    spent_s = 2.0 * float(gather_s(s.x, s.c, place(s.x, number(16), ONE), number(2048 * MIB)))
    assert 2.0 * bus_gbytes_per_s(16, 2048 * MIB, spent_s) == pytest.approx(78.33, rel=0.12)


@pytest.mark.parametrize(
    ("device", "measured"), [("a100-sxm-80gb", 235.0), ("h200-sxm-141gb", 365.6), ("mi300x", 312.9)]
)
def test_a_ring_inside_a_node_reaches_four_fifths_of_its_links(device: str, measured: float) -> None:
    """Bekman, Machine Learning Engineering@744d01e1, network/README.md: bus bandwidth of a large all-reduce
    over 8 devices; of the H200 the row of NCCL_ALGO=Ring. With links counted both ways it would be twice
    that, with switches that reduce (NVLS) 473 on the H200."""
    s = scene("llama-3.1-8b", device=device, devices=8, batch=8)
    spent_s = 2.0 * float(gather_s(s.x, s.c, place(s.x, number(8), ONE), number(4096 * MIB)))
    assert 2.0 * bus_gbytes_per_s(8, 4096 * MIB, spent_s) == pytest.approx(measured, rel=0.13)


@pytest.mark.parametrize(
    ("ranks", "tokens", "published"),
    [(16, 8192, (90.0, 81.0)), (32, 8192, (61.0, 61.0)), (64, 4096, (51.0, 50.0))],
)
def test_deepep_reaches_the_bandwidths_of_its_own_table(
    ranks: int, tokens: int, published: tuple[float, float]
) -> None:
    """deepseek-ai/DeepEP@dd758caf, README.md (EP 8 x 2, EP 8 x 4, ConnectX-7) and docs/legacy.md (EP 64),
    dispatch and combine: logical bandwidth, of every node that a token goes to, its own too
    (num_rdma_token_sent of tests/legacy/test_internode.py). 7,168 values, 8 experts, at most 4 of 8 groups.
    Had every copy crossed, as in a plain exchange, 32 ranks would reach 27."""
    model = DEEPSEEK_V3 | {"n_group": 8, "topk_group": 4}
    s = scene(model, devices=64, ep=ranks, batch=64, moe_dispatcher="deepep")
    token_bytes, nodes = 7168 * 2.0, ranks / 8
    spent_s = all_to_all_s(
        s.x, s.c, place(s.x, number(ranks), ONE), number(tokens * 8 * token_bytes), number(8)
    )
    nodes_hit = min(nodes * (1 - (1 - 1 / nodes) ** 8), 4.0)
    logical = tokens * nodes_hit * token_bytes / float(spent_s) / GB
    assert logical == pytest.approx(sum(published) / 2, rel=0.05)


@pytest.mark.parametrize(
    ("device", "chips", "axes", "links"),
    [
        ("tpu-v5e", [16, 1], 1, 1e11),
        ("tpu-v5e", [16, 16], 2, 1e11),
        ("tpu-v5p", [4, 4, 4], 3, 2e11),
        ("tpu-v5p", [4, 4, 1], 2, 2e11),
        ("tpu-v5p", [2, 2, 2], 1.5, 2e11),
    ],
)
def test_a_gather_over_a_slice_has_the_links_of_each_of_its_axes(
    device: str, chips: list[int], axes: float, links: float
) -> None:
    """Austin et al., How to Scale Your Model (jax-ml/scaling-book@0819a7d8, sharding.md): V / (W n_axes), W
    both links of an axis (there 9e10 and 1.8e11 bytes/s; here the vendor's 1,600 and 4,800 Gbit/s over two
    and three axes); tpus.md: 2x2x2 has no wraparound, which doubles the time. The old formula gave every
    slice of as many chips the same time."""
    count = math.prod(chips)
    words = {"device": device, "devices": count, "batch": count, "framework": "maxtext", "zero_stage": 3}
    s = scene("llama-3.1-8b", **words, cluster={"topology": {"torus_dimensions": chips}})
    c = replace(s.c, fast_link_efficiency=ONE)
    spent_s = gather_transfer_s(s.x, c, place(s.x, number(count), ONE), number(1e9))
    assert float(spent_s) == pytest.approx(1e9 * (1 - 1 / count) / (links * axes))
