"""What each kind of parallelism sends, in seconds on the wire before any overlap.

Tensor, context and expert parallelism are counted per layer and micro-batch, pipeline per micro-batch,
data parallelism per step.
"""

from dataclasses import dataclass

from tools.cost.arithmetic import is_any, maximum, number, where
from tools.cost.collectives import (
    Group,
    all_to_all_s,
    gather_latency_s,
    gather_s,
    gather_transfer_s,
    neighbour_s,
    place,
    slice_devices,
)
from tools.cost.constants import Coefficients
from tools.cost.inputs import Array, Columns, Inputs
from tools.cost.sizes import dense_shards, expert_ranks, expert_shards


def tensor_pair_s(x: Inputs, c: Coefficients) -> Array:
    """One all-reduce of the hidden state, or the all-gather and reduce-scatter of sequence parallelism, which
    move the same bytes (Korthikanti et al., arXiv 2205.05198, section 4.2.2)."""
    group = place(x, x.tp, number(1.0))
    passes = 2.0 + where(x.sequence_parallel > 0, x.scatter_passes - 1.0, 0.0)
    return passes * gather_s(x, c, group, x.tokens * x.hidden * x.value_bytes)


def context_s(x: Inputs, c: Coefficients) -> Array:
    """Ring exchange of keys and values, backward with their gradients too (Liu et al., arXiv 2310.01889)."""
    hop_s = neighbour_s(x, c, place(x, x.cp, x.tp), ring_block_bytes(x))
    return 3.0 * (x.cp - 1.0) * hop_s


def ring_block_bytes(x: Inputs) -> Array:
    """Keys and values of a rank's part of the sequence; a head that tensor ranks share is sent whole."""
    return x.tokens * maximum(x.kv_heads / x.tp, 1.0) * (x.qk_dim + x.v_dim) * x.value_bytes


def ring_merge_s(x: Inputs) -> Array:
    """Each step of the ring rescales the fp32 partial output forward and adds fp32 partial gradients of q, k
    and v backward (Transformer Engine, attention with context parallelism)."""
    outputs = x.heads * x.v_dim / x.tp
    gradients = (x.heads * x.qk_dim + x.kv_heads * (x.qk_dim + x.v_dim)) / x.tp
    merged_bytes = 8.0 * x.tokens * (outputs + gradients)
    return where(x.cp > 1, x.cp * merged_bytes / x.memory_bandwidth, 0.0)


def mixer_exchange_s(x: Inputs, c: Coefficients) -> Array:
    """A recurrence needs whole sequences: ranks exchange heads for tokens and back, forward and backward
    (Megatron-Core's mamba_context_parallel.py)."""
    sent_bytes = x.tokens * (x.mixer_in + x.mixer_out) / x.tp * x.value_bytes
    group = place(x, x.cp, x.tp)
    return 2.0 * all_to_all_s(x, c, group, sent_bytes, number(1.0), dispatches=False)


def expert_s(x: Inputs, c: Coefficients) -> Array:
    """Dispatch and combine, forward and backward, of one layer; and the gathers inside a sharded expert."""
    sent_bytes = x.tokens / x.tp * x.etp * x.experts_per_token * x.moe_hidden * x.value_bytes
    exchange_s = all_to_all_s(x, c, place(x, x.ep, x.etp), sent_bytes / x.etp, x.experts_per_token)
    inner_s = gather_s(x, c, place(x, x.etp, number(1.0)), sent_bytes)
    return 4.0 * (exchange_s + where(x.etp > 1, inner_s, 0.0))


def pipeline_s(x: Inputs, c: Coefficients) -> Array:
    """Activations to the next stage and gradients back, for every model chunk of a stage."""
    message_bytes = pipeline_message_bytes(x)
    group = place(x, x.pp, x.tp * x.cp * x.dp)
    hop_s = neighbour_s(x, c, group, message_bytes)
    # scatter-gather: each tensor rank sends its part, and the parts are gathered over the fast links
    gathers = (x.scatters_pipeline > 0) & (x.sequence_parallel <= 0) & (x.tp > 1)
    gather = gather_s(x, c, place(x, x.tp, number(1.0)), message_bytes * x.tp)
    # interleaved stages receive ahead of need, so hops on fast links hide under compute
    hop_s = where((x.vpp > 1) & (group.outside <= 1), 0.0, hop_s)
    return 2.0 * x.vpp * (hop_s + where(gathers, gather, 0.0))


def pipeline_message_bytes(x: Inputs) -> Array:
    """What one rank sends to the next stage: its part of the sequence, or of the hidden state where the
    framework scatters it over the tensor ranks (Narayanan et al., arXiv 2104.04473, section 4.1)."""
    parts = where(x.scatters_pipeline > 0, x.tp, x.sequence_parallel_degree)
    return x.tokens * x.hidden * x.value_bytes / parts


def intra_node_hop_share(x: Inputs) -> Array:
    """Share of the hops from the first stage to the last that stay inside a node and take next to no time.
    Only for flat libraries, whose nodes have one slow card; elsewhere every hop counts as the slowest."""
    group = place(x, x.pp, x.tp * x.cp * x.dp)
    crossing = (group.outside - 1.0) / maximum(x.pp - 1.0, 1.0)
    return where((x.flat_rings > 0) & (group.outside > 1), 1.0 - crossing, 0.0)


@dataclass(frozen=True)
class DataTraffic(Columns):
    """Seconds per step, split by when it can run and by whether compute can hide it."""

    end_scatter: Array
    """Gradients, once per step."""
    end_gather: Array
    """Updated parameters, once per step."""
    every_micro_batch: Array
    """ZeRO-3: parameters gathered twice and gradients scattered; ZeRO-2: gradients scattered."""
    scatter_bytes: Array
    gather_bytes: Array
    micro_batch_bytes: Array
    """What the three move through the device's memory."""

    def __add__(self, other: "DataTraffic") -> "DataTraffic":
        return DataTraffic(
            self.end_scatter + other.end_scatter,
            self.end_gather + other.end_gather,
            self.every_micro_batch + other.every_micro_batch,
            self.scatter_bytes + other.scatter_bytes,
            self.gather_bytes + other.gather_bytes,
            self.micro_batch_bytes + other.micro_batch_bytes,
        )


def data_s(x: Inputs, c: Coefficients, dense: Array, expert: Array, layers: Array) -> DataTraffic:
    """Data parallelism of a stage with `dense` and `expert` parameters on a rank, one message per layer."""
    traffic = _sharded_s(x, c, dense, x.dp * x.cp, x.tp, dense_shards(x), layers)
    if not is_any(expert):
        return traffic
    return traffic + _sharded_s(x, c, expert, expert_ranks(x), x.ep * x.etp, expert_shards(x), layers)


def _sharded_s(
    x: Inputs, c: Coefficients, parameters: Array, ranks: Array, stride: Array, shards: Array, layers: Array
) -> DataTraffic:
    messages = where(parameters > 0, layers, 0.0)
    domain = slice_devices(x)
    shard_group = place(x, shards, stride, domain)
    replica_group = place(x, ranks / shards, stride * shards, domain)
    weights, reduced = x.stored_bytes * parameters / layers, x.reduced_bytes * parameters / layers
    reduced = reduced * x.trained_share
    gathered_once = where(x.zero >= 3, weights, weights * x.trained_share)
    # plain data parallelism joins gradients into buckets, about one per layer
    per_layer = where(x.zero > 0, x.messages_per_layer, 1.0)
    hops = messages * per_layer * gather_latency_s(x, c, shard_group)
    gather = messages * sharded_gather_s(x, c, shard_group, gathered_once) + hops
    scatter = (messages * sharded_gather_s(x, c, shard_group, reduced) + hops) * x.scatter_passes
    replica_hops = messages * per_layer * gather_latency_s(x, c, replica_group)
    replicas = 2.0 * (messages * gather_transfer_s(x, c, replica_group, reduced / shards) + replica_hops)
    # each micro-batch: ZeRO-3 gathers twice and scatters, ZeRO-2 scatters; the rest waits for the step's end
    is_three, is_two = x.zero >= 3, x.zero >= 2
    gathers, scatters = where(is_three, 2.0, 0.0), where(is_two, 1.0, 0.0)
    end_gathers, end_scatters = where(is_three, 0.0, 1.0), where(is_two, 0.0, 1.0)
    # a gathered byte is read once and written once, a reduced one read twice and written once
    moved = where(shards > 1, messages, 0.0)
    replicated = where(ranks / shards > 1, 5.0 * messages * reduced / shards, 0.0)
    return DataTraffic(
        end_scatter=end_scatters * scatter + replicas,
        end_gather=end_gathers * gather,
        every_micro_batch=gathers * gather + scatters * scatter,
        scatter_bytes=moved * end_scatters * 3.0 * reduced + replicated,
        gather_bytes=moved * end_gathers * 2.0 * gathered_once,
        micro_batch_bytes=moved * (gathers * 2.0 * weights + scatters * 3.0 * reduced),
    )


FLAT_RING_EFFICIENCY = 0.7
"""Of one network card per node, when parameters are gathered one by one (DeepSpeed ZeRO-3)."""


def sharded_gather_s(x: Inputs, c: Coefficients, group: Group, message_bytes: Array) -> Array:
    """A gather (or scatter) of sharded weights. DeepSpeed's ZeRO-3 sends parameter by parameter over a flat
    ring that leaves each node by one card."""
    usual = gather_transfer_s(x, c, group, message_bytes)
    if not is_any(x.flat_from_stage <= 3):
        return usual
    crossing = message_bytes * (group.size - 1.0) / group.size
    flat = crossing / (x.scale_out_bandwidth * c.slow_link_efficiency * FLAT_RING_EFFICIENCY)
    is_flat = (x.zero >= x.flat_from_stage) & (group.outside > 1)
    return where(is_flat, maximum(usual, flat), usual)
