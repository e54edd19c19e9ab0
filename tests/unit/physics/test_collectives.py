"""Where groups lie, and what their messages cost: formulas by hand and laws that hold for any message."""

from dataclasses import replace

import pytest

from tests.unit.physics.scenes import Scene, number, scene
from tools.physics.collectives import (
    Group,
    all_to_all_s,
    gather_s,
    gather_transfer_s,
    neighbour_s,
    place,
)
from tools.physics.inputs import Coefficients

ONE = number(1.0)


def perfect(s: Scene) -> Coefficients:
    """Links at their full rate, no latency beyond the device's own."""
    return replace(s.c, fast_link_efficiency=ONE, slow_link_efficiency=ONE, rank_latency_s=number(0.0))


def group(s: Scene, size: float, stride: float = 1.0) -> Group:
    return place(s.x, number(size), number(stride))


def test_a_group_of_one_costs_nothing() -> None:
    s, message = scene(), number(1e9)
    for cost in (gather_s, neighbour_s):
        assert float(cost(s.x, s.c, group(s, 1), message)) == 0.0
    assert float(all_to_all_s(s.x, s.c, group(s, 1), message, number(8))) == 0.0


@pytest.mark.parametrize(("size", "axes"), [(2, 1), (8, 1), (16, 2), (64, 2), (512, 3)])
def test_a_torus_group_uses_the_links_of_the_axes_it_spans(size: int, axes: int) -> None:
    s = scene("llama-3.1-8b", device="tpu-v5p", devices=512, batch=512, framework="maxtext", zero_stage=3)
    assert float(group(s, size).link_share) == pytest.approx(axes / 3)
    x = replace(s.x, scale_up_bandwidth=number(600e9))
    sent_s = float(gather_transfer_s(x, perfect(s), group(s, size), number(1e9)))
    assert sent_s == pytest.approx(1e9 * (1 - 1 / size) / (600e9 * axes / 3))


def test_an_all_to_all_crosses_the_network_once_for_each_domain_a_token_goes_to() -> None:
    """Four domains, two copies: a token reaches a given remote domain with probability 1 - (3/4)^2. Fused
    dispatchers reach 0.9 of the card."""
    s = scene("mixtral-8x7b", ep=8, moe_dispatcher="deepep")
    x = replace(s.x, scale_up_bandwidth=number(1e30), scale_up_latency=0.0 * ONE, scale_out_latency=0.0 * ONE)
    tokens_bytes = 1e9
    spent = all_to_all_s(x, perfect(s), group(s, 32), number(2 * tokens_bytes), number(2.0))
    assert float(spent) == pytest.approx(tokens_bytes * 3 * (1 - 0.75**2) / (0.9 * 50e9), rel=1e-9)


def test_node_limited_routing_caps_the_domains_a_token_is_sent_to() -> None:
    """Four domains, 64 copies: without a limit all three others, with two of four groups one and a half."""
    s = scene("mixtral-8x7b", ep=8, moe_dispatcher="deepep")
    free = replace(
        s.x, scale_up_bandwidth=number(1e30), scale_up_latency=0.0 * ONE, scale_out_latency=0.0 * ONE
    )
    limited = replace(free, routing_groups=number(4.0), groups_per_token=number(2.0))
    spent = [float(all_to_all_s(x, s.c, group(s, 32), number(64e9), number(64.0))) for x in (free, limited)]
    assert spent[1] / spent[0] == pytest.approx(2 / 4, rel=1e-3)


def test_a_message_to_the_next_rank_takes_the_network_when_any_hop_does() -> None:
    s = scene()
    inside, across = group(s, 8), group(s, 16)
    assert float(neighbour_s(s.x, perfect(s), inside, number(1e9))) == pytest.approx(1e9 / 450e9 + 1.9e-6)
    assert float(neighbour_s(s.x, perfect(s), across, number(1e9))) == pytest.approx(1e9 / 50e9 + 4e-6)
