"""What a collective costs, given where its ranks are placed.

Ranks are ordered tensor, context, data, pipeline (Megatron-Core's default); expert groups are consecutive
ranks.
"""

from dataclasses import dataclass

import numpy as np

from tools.physics.arithmetic import clip, is_any, maximum, minimum, number, where
from tools.physics.inputs import Array, Coefficients, Inputs

PROXY_START_S = 0.3e-3
"""An exchange behind a host proxy waits for the CPU thread at its start and end (read off runs/aws-moe)."""
EXCHANGE_EFFICIENCY = 0.95
"""Share of the line that NCCL's all-to-all reaches with large messages: 0.8 to 0.95 (tests/anchors)."""
FUSED_DISPATCH_EFFICIENCY = 0.9
"""Share of the network card that DeepEP and HybridEP reach (DeepEP, README: 61 GB/s, 3/4 of it crossing)."""


@dataclass(frozen=True)
class Group:
    """A communication group and how it lies over the scale-up domains."""

    size: Array
    inside: Array
    outside: Array
    link_share: Array
    """Share of a device's fast links that the group can use."""


def place(x: Inputs, size: Array, stride: Array, domain: Array | None = None) -> Group:
    """Where a group lies; `domain` replaces the devices that fast links join."""
    inside = clip(np.floor((x.scale_up_size if domain is None else domain) / stride), 1.0, size)
    link_share = number(1.0)
    if is_any(x.torus_dimensions):
        link_share = where(x.torus_dimensions > 0, _axes(x, inside) / maximum(x.torus_dimensions, 1.0), 1.0)
    return Group(size, inside, size / inside, link_share)


def _axes(x: Inputs, ranks: Array) -> Array:
    """Axes whose links so many neighbours use: a ring along one axis of a torus has the links of that axis
    only, and takes the longest first. An axis of two chips has both its links to the same neighbour, which a
    ring uses one way (How to Scale Your Model, jax-ml.github.io/scaling-book, sharding and tpus)."""
    axes, joined = number(0.0), number(1.0)
    for side in (x.torus_longest, x.torus_middle, x.torus_shortest):
        links = where(side > 2, 1.0, where(side > 1, 0.5, 0.0))
        axes = axes + where(joined < maximum(ranks, 2.0) - 1e-9, links, 0.0)
        joined = joined * maximum(side, 1.0)
    return maximum(axes, 0.5)


def slice_devices(x: Inputs) -> Array:
    """Devices that fast links join for data parallelism. On TPUs a hybrid-sharded job runs on several slices,
    one per replica (MaxText's ici/dcn parallelism), joined by the data-centre network."""
    hybrid = (x.torus_dimensions > 0) & (x.dp_shard > 1) & (x.dp_shard < x.dp * x.cp)
    return where(hybrid, minimum(x.scale_up_size, x.tp * x.pp * x.dp_shard), x.scale_up_size)


def gather_s(x: Inputs, c: Coefficients, group: Group, message_bytes: Array) -> Array:
    """All-gather (or reduce-scatter) whose full message has `message_bytes`."""
    return gather_transfer_s(x, c, group, message_bytes) + gather_latency_s(x, c, group)


def gather_transfer_s(x: Inputs, c: Coefficients, group: Group, message_bytes: Array) -> Array:
    """The part of a gather that grows with its bytes."""
    fast = message_bytes * (group.size - 1.0) / group.size / _fast_rate(x, c, group)
    return maximum(fast, network_bytes(x, group, message_bytes) / _slow_rate(x, c))


def network_bytes(x: Inputs, group: Group, message_bytes: Array) -> Array:
    """What a rank sends over the network in a gather: a ring per device of the domain, over domains only."""
    ring = where(x.flat_rings > 0, group.size, group.outside)
    ring = where(group.outside > 1, ring, 1.0)
    return message_bytes * (ring - 1.0) / ring / group.inside


def gather_latency_s(x: Inputs, c: Coefficients, group: Group) -> Array:
    """Start-up and per-hop latency of a gather; very wide flat rings pay for every rank."""
    beyond = maximum(c.rank_latency_s, x.scale_up_latency)
    hops = x.scale_up_latency * (group.inside - 1.0) + beyond * (group.size - group.inside)
    return where(group.size > 1, hops, 0.0)


def all_to_all_s(
    x: Inputs, c: Coefficients, group: Group, sent_bytes: Array, copies: Array, dispatches: bool = True
) -> Array:
    """Each rank sends `sent_bytes`, `copies` routed copies per token. With fused kernels a token bound for
    several ranks of a remote domain crosses the network once and is spread inside (DeepEP, README); a plain
    exchange sends every copy. What the experts' dispatcher does holds only if this is it (`dispatches`)."""
    fast = sent_bytes * (group.size - 1.0) / group.size / _fast_rate(x, c, group)
    is_fused, outside = x.has_fused_dispatch * dispatches > 0, group.outside
    crossing = crossing_bytes(x, group, sent_bytes, copies, dispatches)
    latency = x.scale_up_latency * np.log2(maximum(group.size, 1.0)) + where(
        outside > 1, x.scale_out_latency, 0.0
    )
    plain = where(x.flat_rings > 0, c.slow_link_efficiency, EXCHANGE_EFFICIENCY)
    rate = x.scale_out_bandwidth * where(is_fused, FUSED_DISPATCH_EFFICIENCY, plain)
    # a message to one peer reaches s / (s + half_rate_bytes) of the rate
    remote_peers = group.size - group.inside
    crossing_s = (crossing + where(is_fused, 0.0, remote_peers * x.half_rate_bytes)) / rate
    # behind a proxy each message of a token is posted by a CPU thread
    messages = crossing / maximum(x.moe_hidden * x.value_bytes, 1.0)
    posted_s = where(is_fused & (outside > 1), messages * x.message_s, 0.0)
    started_s = where(posted_s > 0, PROXY_START_S, 0.0)
    exchanged_s = maximum(maximum(fast, crossing_s), posted_s) + latency + started_s
    # the gathering dispatcher sends every token to every rank of the group
    tokens_bytes = sent_bytes / maximum(copies, 1.0) * group.size
    gathered_s = gather_s(x, c, group, tokens_bytes)
    return where(group.size > 1, where(x.gathers_tokens * dispatches > 0, gathered_s, exchanged_s), 0.0)


def crossing_bytes(
    x: Inputs, group: Group, sent_bytes: Array, copies: Array, dispatches: bool = True
) -> Array:
    """What a rank of an exchange sends over the network."""
    outside = group.outside
    domains_hit = outside * (1.0 - (1.0 - 1.0 / maximum(outside, 1.0)) ** copies)
    # node-limited routing (DeepSeek-V3, arXiv 2412.19437, section 2.1.2) caps the groups, hence the domains
    domains_per_group = maximum(outside / maximum(x.routing_groups, 1.0), 1.0)
    cap = where(x.routing_groups > 0, x.groups_per_token * domains_per_group, outside)
    domains_hit = minimum(domains_hit, maximum(cap, 1.0))
    sent_once = sent_bytes / maximum(copies, 1.0) * domains_hit
    is_fused = x.has_fused_dispatch * dispatches > 0
    return where(is_fused, sent_once, sent_bytes) * (outside - 1.0) / outside


def neighbour_s(x: Inputs, c: Coefficients, group: Group, message_bytes: Array) -> Array:
    """A message to the next rank of the group; the slowest hop counts."""
    crosses = group.outside > 1
    # through a shared card the one member that sends out of its node has the others' share too
    card = where(x.flat_rings > 0, group.inside, 1.0)
    rate = where(crosses, card * _slow_rate(x, c), _fast_rate(x, c, group))
    latency = where(crosses, x.scale_out_latency, x.scale_up_latency)
    return where(group.size > 1, message_bytes / rate + latency, 0.0)


def _fast_rate(x: Inputs, c: Coefficients, group: Group) -> Array:
    return x.scale_up_bandwidth * c.fast_link_efficiency * group.link_share


def _slow_rate(x: Inputs, c: Coefficients) -> Array:
    return x.scale_out_bandwidth * c.slow_link_efficiency
