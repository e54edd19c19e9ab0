"""Where groups lie, and what their messages cost: formulas by hand and laws that hold for any message."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.cost.scenes import Scene, number, scene
from tools.cost.collectives import (
    Group,
    all_reduce_s,
    all_to_all_s,
    gather_latency_s,
    gather_s,
    gather_transfer_s,
    neighbour_s,
    place,
)
from tools.cost.constants import Coefficients

SIZE = st.integers(0, 10).map(lambda power: 2.0**power)
BYTES = st.floats(1.0, 1e12)
ONE = number(1.0)
GPUS = ["a800-sxm-80gb", "a100-sxm-80gb", "h100-sxm-80gb", "gb200", "mi300x", "trainium2"]


def perfect(s: Scene) -> Coefficients:
    """Links at their full rate, no latency beyond the device's own."""
    return replace(s.c, fast_link_efficiency=ONE, slow_link_efficiency=ONE, rank_latency_s=number(0.0))


def group(s: Scene, size: float, stride: float = 1.0) -> Group:
    return place(s.x, number(size), number(stride))


def test_a_ring_inside_a_node_moves_its_share_over_each_link() -> None:
    s = scene()
    transfer = 1e9 * (7 / 8) / 450e9
    assert float(gather_transfer_s(s.x, perfect(s), group(s, 8), number(1e9))) == pytest.approx(transfer)
    whole = gather_s(s.x, perfect(s), group(s, 8), number(1e9))
    assert float(whole) == pytest.approx(transfer + 7 * 1.9e-6, rel=1e-12)


def test_members_of_a_node_use_their_network_cards_side_by_side() -> None:
    s = scene()
    x = replace(s.x, scale_up_bandwidth=number(1e30))
    eight, one = group(s, 32), group(s, 4, stride=8)
    assert (float(eight.inside), float(eight.outside)) == (8.0, 4.0)
    assert (float(one.inside), float(one.outside)) == (1.0, 4.0)
    alone = float(gather_transfer_s(x, perfect(s), one, number(1e9)))
    assert alone == pytest.approx(1e9 * (3 / 4) / 50e9, rel=1e-12)
    assert float(gather_transfer_s(x, perfect(s), eight, number(1e9))) == pytest.approx(alone / 8)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    s = scene()
    message = number(3e8)
    assert all_reduce_s(s.x, s.c, group(s, 8), message) == 2 * gather_s(s.x, s.c, group(s, 8), message)


def test_a_group_of_one_costs_nothing() -> None:
    s, message = scene(), number(1e9)
    for cost in (gather_s, all_reduce_s, neighbour_s):
        assert float(cost(s.x, s.c, group(s, 1), message)) == 0.0
    assert float(all_to_all_s(s.x, s.c, group(s, 1), message, number(8))) == 0.0


@pytest.mark.parametrize("device", [*GPUS, "tpu-v5p", "tpu-v5e", "cpu"])
@given(size=SIZE, message=BYTES, factor=st.floats(1.0, 100.0))
def test_a_longer_message_never_costs_less(device: str, size: float, message: float, factor: float) -> None:
    s = scene("llama-3.1-8b", device=device, devices=4096, batch=4096)
    where = group(s, size)
    for cost in (gather_s, all_reduce_s, neighbour_s):
        longer = float(cost(s.x, s.c, where, number(message * factor)))
        assert longer >= float(cost(s.x, s.c, where, number(message)))


@pytest.mark.parametrize("device", GPUS)
@given(size=SIZE, stride=SIZE, message=BYTES)
def test_gathering_over_twice_the_ranks_never_costs_less(
    device: str, size: float, stride: float, message: float
) -> None:
    s, m = scene("llama-3.1-8b", device=device, devices=4096, batch=4096), number(message)
    narrow, wide = group(s, size, stride * 8), group(s, size * 2, stride * 8)
    assert float(gather_s(s.x, s.c, wide, m)) >= float(gather_s(s.x, s.c, narrow, m)) * (1 - 1e-12)


@pytest.mark.parametrize("device", GPUS)
@given(size=st.sampled_from([2.0, 4.0, 8.0]), message=BYTES)
def test_a_group_inside_the_node_never_sends_longer_than_one_across_nodes(
    device: str, size: float, message: float
) -> None:
    s, m = scene("llama-3.1-8b", device=device, devices=4096, batch=4096), number(message)
    inside, across = group(s, size), group(s, size, stride=128)
    for cost in (gather_transfer_s, neighbour_s):
        assert float(cost(s.x, s.c, inside, m)) <= float(cost(s.x, s.c, across, m))
    routed = number(4.0)
    assert float(all_to_all_s(s.x, s.c, inside, m, routed)) <= float(
        all_to_all_s(s.x, s.c, across, m, routed)
    )


@pytest.mark.parametrize("device", [*GPUS, "cpu"])
def test_hops_between_nodes_take_no_less_than_hops_inside(device: str) -> None:
    s = scene("llama-3.1-8b", device=device, devices=4096, batch=4096)
    inside, across = (float(gather_latency_s(s.x, s.c, group(s, 2, stride))) for stride in (1, 128))
    assert inside <= across


@pytest.mark.parametrize("cost", [gather_s, all_reduce_s, neighbour_s])
@given(size=SIZE, message=BYTES, faster=st.floats(1.0, 50.0), link=st.sampled_from(["scale_up", "scale_out"]))
def test_a_faster_link_never_makes_a_message_slower(
    cost: Callable[..., Any], size: float, message: float, faster: float, link: str
) -> None:
    s, m = scene(), number(message)
    field = f"{link}_bandwidth"
    quick = replace(s.x, **{field: getattr(s.x, field) * faster})
    assert float(cost(quick, s.c, group(s, size), m)) <= float(cost(s.x, s.c, group(s, size), m))


@pytest.mark.parametrize(("device", "domain"), [("h100-sxm-80gb", 8), ("gb200", 72), ("tpu-v5p", 8960)])
def test_the_fast_domain_is_the_device_s_own(device: str, domain: int) -> None:
    s = scene("llama-3.1-8b", device=device, devices=16384, batch=16384)
    assert float(group(s, 16384).inside) == domain


def test_a_stride_beyond_the_domain_leaves_each_rank_alone() -> None:
    where = group(scene(), 4, stride=64)
    assert (float(where.inside), float(where.outside)) == (1.0, 4.0)


@pytest.mark.parametrize(("size", "axes"), [(2, 1), (8, 1), (16, 2), (64, 2), (512, 3)])
def test_a_torus_group_uses_the_links_of_the_axes_it_spans(size: int, axes: int) -> None:
    s = scene("llama-3.1-8b", device="tpu-v5p", devices=512, batch=512, framework="maxtext", zero_stage=3)
    assert float(group(s, size).link_share) == pytest.approx(axes / 3)


def test_a_switched_domain_gives_every_group_the_whole_link() -> None:
    assert float(group(scene(), 2).link_share) == 1.0


def test_an_all_to_all_crosses_the_network_once_for_each_domain_a_token_goes_to() -> None:
    """Four domains, two copies: a token reaches a given remote domain with probability 1 - (3/4)^2. Fused
    dispatchers reach 0.9 of the card."""
    s = scene()
    x = replace(s.x, scale_up_bandwidth=number(1e30), scale_up_latency=0.0 * ONE, scale_out_latency=0.0 * ONE)
    tokens_bytes = 1e9
    spent = all_to_all_s(x, perfect(s), group(s, 32), number(2 * tokens_bytes), number(2.0))
    assert float(spent) == pytest.approx(tokens_bytes * 3 * (1 - 0.75**2) / (0.9 * 50e9), rel=1e-9)


def test_node_limited_routing_caps_the_domains_a_token_is_sent_to() -> None:
    """Four domains, 64 copies: without a limit all three others, with two of four groups one and a half."""
    s = scene()
    free = replace(
        s.x, scale_up_bandwidth=number(1e30), scale_up_latency=0.0 * ONE, scale_out_latency=0.0 * ONE
    )
    limited = replace(free, routing_groups=number(4.0), groups_per_token=number(2.0))
    spent = [float(all_to_all_s(x, s.c, group(s, 32), number(64e9), number(64.0))) for x in (free, limited)]
    assert spent[1] / spent[0] == pytest.approx(2 / 4, rel=1e-3)


def test_the_legs_inside_and_outside_of_an_all_to_all_run_side_by_side() -> None:
    s = scene()
    whole = float(all_to_all_s(s.x, s.c, group(s, 32), number(1e9), number(1.0)))
    slow = replace(s.x, scale_up_bandwidth=number(1e30))
    fast = replace(s.x, scale_out_bandwidth=number(1e30))
    legs = [float(all_to_all_s(x, s.c, group(s, 32), number(1e9), number(1.0))) for x in (slow, fast)]
    assert whole == pytest.approx(max(legs), rel=1e-6)


@given(copies=st.integers(1, 64), message=BYTES)
def test_sending_a_domain_one_copy_never_costs_more_than_sending_all(copies: int, message: float) -> None:
    s = scene()
    x = replace(s.x, scale_up_bandwidth=number(1e30), scale_up_latency=0.0 * ONE, scale_out_latency=0.0 * ONE)
    spent = all_to_all_s(x, perfect(s), group(s, 32), number(message), number(copies))
    assert float(spent) <= message * (3 / 4) / (0.9 * 50e9) * (1 + 1e-9)


def test_a_message_to_the_next_rank_takes_the_network_when_any_hop_does() -> None:
    s = scene()
    inside, across = group(s, 8), group(s, 16)
    assert float(neighbour_s(s.x, perfect(s), inside, number(1e9))) == pytest.approx(1e9 / 450e9 + 1.9e-6)
    assert float(neighbour_s(s.x, perfect(s), across, number(1e9))) == pytest.approx(1e9 / 50e9 + 4e-6)
