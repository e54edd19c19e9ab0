"""What each kind of parallelism sends, in seconds on the wire before any overlap.

Tensor, context and expert parallelism are counted per layer and micro-batch, pipeline per micro-batch,
data parallelism per step.
"""

from dataclasses import dataclass

from tools.physics.arithmetic import ONE, is_any, maximum, where
from tools.physics.collectives import (
    Group,
    all_to_all_s,
    gather_latency_s,
    gather_s,
    gather_transfer_s,
    neighbour_s,
    place,
    slice_devices,
)
from tools.physics.inputs import Array, Coefficients, Columns, Inputs
from tools.physics.sizes import dense_shards, expert_ranks, expert_shards
from tools.physics.traits import CONTEXT_EXCHANGES
from tools.scenario.columns import encode_value

KEPT_UNTIL_BACKWARD = float(encode_value("reshard_after_forward", False))
RING, GATHER, HEADS = (float(CONTEXT_EXCHANGES.index(name)) for name in ("ring", "gather", "heads"))
FLAT_RING_EFFICIENCY = 0.7
"""Share of one network card per node, reached when parameters are gathered singly (DeepSpeed ZeRO-3)."""


def tensor_pair_s(x: Inputs, c: Coefficients) -> Array:
    """One all-reduce of the hidden state, or the all-gather and reduce-scatter of sequence parallelism, which
    move the same bytes (Korthikanti et al., arXiv 2205.05198, section 4.2.2)."""
    group = place(x, x.tp, ONE)
    passes = 2.0 + where(x.sequence_parallel > 0, x.scatter_passes - 1.0, 0.0)
    return passes * gather_s(x, c, group, x.tokens * x.hidden * x.value_bytes)


def context_s(x: Inputs, c: Coefficients) -> Array:
    """A ring exchanges keys and values, backward with their gradients too (Liu et al., arXiv 2310.01889), or
    all are gathered, backward again and their gradients scattered."""
    group, block_bytes = place(x, x.cp, x.tp), ring_block_bytes(x)
    ring_s = 3.0 * (x.cp - 1.0) * neighbour_s(x, c, group, block_bytes)
    gathers = x.context_exchange == GATHER
    if not is_any(gathers):
        return ring_s
    return where(gathers, 3.0 * gather_s(x, c, group, block_bytes * x.cp), ring_s)


def heads_exchange_s(x: Inputs, c: Coefficients) -> Array:
    """Ulysses: queries, keys and values of all tokens and some heads, and the output back; both ways (Jacobs
    et al., arXiv 2309.14509, section 3). Nothing runs beside it."""
    width = x.heads * (x.qk_dim + x.v_dim) + x.kv_heads * (x.qk_dim + x.v_dim)
    sent_bytes = x.tokens * width / x.tp * x.value_bytes
    exchange_s = 2.0 * all_to_all_s(x, c, place(x, x.cp, x.tp), sent_bytes, ONE, dispatches=False)
    return where(x.cp > 1, exchange_s, 0.0)


def ring_block_bytes(x: Inputs) -> Array:
    """Keys and values of a rank's part of the sequence; a head that tensor ranks share is sent whole."""
    return x.tokens * maximum(x.kv_heads / x.tp, 1.0) * (x.qk_dim + x.v_dim) * x.value_bytes


def ring_merge_s(x: Inputs) -> Array:
    """Each step of the ring rescales the fp32 partial output forward and adds fp32 partial gradients of q, k
    and v backward (Transformer Engine, attention with context parallelism)."""
    outputs = x.heads * x.v_dim / x.tp
    gradients = (x.heads * x.qk_dim + x.kv_heads * (x.qk_dim + x.v_dim)) / x.tp
    merged_bytes = 8.0 * x.tokens * (outputs + gradients)
    is_ring = (x.cp > 1) & (x.context_exchange == RING)
    return where(is_ring, x.cp * merged_bytes / x.memory_bandwidth, 0.0)


def mixer_exchange_s(x: Inputs, c: Coefficients) -> Array:
    """A recurrence needs whole sequences: ranks exchange heads for tokens and back, forward and backward
    (Megatron-Core's mamba_context_parallel.py)."""
    sent_bytes = x.tokens * (x.mixer_in + x.mixer_out) / x.tp * x.value_bytes
    group = place(x, x.cp, x.tp)
    return 2.0 * all_to_all_s(x, c, group, sent_bytes, ONE, dispatches=False)


def expert_s(x: Inputs, c: Coefficients) -> Array:
    """Dispatch and combine, forward and backward, of one layer; and the gathers inside a sharded expert.

    What is sent to experts, tokens forward and gradients backward, may have 8 bits; what comes back is summed
    and has not (DeepSeek-V3, arXiv 2412.19437, section 3.3.3)."""
    values = x.tokens / x.tp * x.etp * x.experts_per_token * x.moe_hidden * x.imbalance
    group = place(x, x.ep, x.etp)

    def exchange_s(value_bytes: Array) -> Array:
        return all_to_all_s(x, c, group, values * value_bytes / x.etp, x.experts_per_token)

    back_s = exchange_s(x.value_bytes)
    out_s = exchange_s(x.dispatch_bytes) if is_any(x.dispatch_bytes < x.value_bytes) else back_s
    inner_s = gather_s(x, c, place(x, x.etp, ONE), values * x.value_bytes)
    return 2.0 * (out_s + back_s) + 4.0 * where(x.etp > 1, inner_s, 0.0)


def pipeline_s(x: Inputs, c: Coefficients) -> Array:
    """Activations to the next stage and gradients back, for every model chunk of a stage."""
    # a rank sends its part of the sequence, or of the hidden state where the framework scatters it over the
    # tensor ranks (Narayanan et al., arXiv 2104.04473, section 4.1) and gathers it over the fast links
    parts = where(x.scatters_pipeline > 0, x.tp, x.sequence_parallel_degree)
    message_bytes = x.tokens * x.hidden * x.value_bytes / parts
    group = place(x, x.pp, x.tp * x.cp * x.dp)
    gathers = (x.scatters_pipeline > 0) & (x.sequence_parallel <= 0) & (x.tp > 1)
    gather = gather_s(x, c, place(x, x.tp, ONE), message_bytes * x.tp)
    # interleaved stages receive ahead of need, so hops on fast links hide under compute
    is_ahead = (x.vpp > 1) & (group.outside <= 1)
    hop_s = where(is_ahead, 0.0, neighbour_s(x, c, group, message_bytes))
    return 2.0 * x.vpp * (hop_s + where(gathers, gather, 0.0))


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
    gathered_once = where(x.zero_stage >= 3, weights, weights * x.trained_share)
    # plain data parallelism joins gradients into buckets, about one per layer
    per_layer = where(x.zero_stage > 0, x.messages_per_layer, 1.0)
    hops = messages * per_layer * gather_latency_s(x, c, shard_group)
    gather = messages * sharded_gather_s(x, c, shard_group, gathered_once) + hops
    scatter = (messages * sharded_gather_s(x, c, shard_group, reduced) + hops) * x.scatter_passes
    replica_hops = messages * per_layer * gather_latency_s(x, c, replica_group)
    replicas = 2.0 * (messages * gather_transfer_s(x, c, replica_group, reduced / shards) + replica_hops)
    (gathers, scatters), (end_gathers, end_scatters) = sharded_messages(x)
    # a gathered byte is read once and written once, a reduced one read twice and written once
    moved = where(shards > 1, messages, 0.0)
    replicated = where(ranks / shards > 1, 5.0 * messages * reduced / shards, 0.0)
    # FSDP2 sums over the replicas of each micro-batch, as it scatters; others once
    each = where((x.reduces_each > 0) & (scatters > 0), 1.0, 0.0)
    return DataTraffic(
        end_scatter=end_scatters * scatter + (1.0 - each) * replicas,
        end_gather=end_gathers * gather,
        every_micro_batch=gathers * gather + scatters * scatter + each * replicas,
        scatter_bytes=moved * end_scatters * 3.0 * reduced + (1.0 - each) * replicated,
        gather_bytes=moved * end_gathers * 2.0 * gathered_once,
        micro_batch_bytes=moved * (gathers * 2.0 * weights + scatters * 3.0 * reduced) + each * replicated,
    )


def sharded_messages(x: Inputs) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """How often a layer's weights are gathered and its gradients scattered: in each micro-batch (ZeRO-3
    gathers twice, or once if weights stay until backward, and scatters; ZeRO-2 scatters), and at the step's
    end, for which the rest waits."""
    is_three, is_two = x.zero_stage >= 3, x.zero_stage >= 2
    gathers = where(x.reshard_after_forward == KEPT_UNTIL_BACKWARD, 1.0, 2.0)
    every_micro_batch = where(is_three, gathers, 0.0), where(is_two, 1.0, 0.0)
    return every_micro_batch, (where(is_three, 0.0, 1.0), where(is_two, 0.0, 1.0))


def sharded_gather_s(x: Inputs, c: Coefficients, group: Group, message_bytes: Array) -> Array:
    """A gather (or scatter) of sharded weights. DeepSpeed's ZeRO-3 sends parameter by parameter over a flat
    ring that leaves each node by one card."""
    usual = gather_transfer_s(x, c, group, message_bytes)
    if not is_any(x.flat_from_stage <= 3):
        return usual
    crossing = message_bytes * (group.size - 1.0) / group.size
    flat = crossing / (x.scale_out_bandwidth * FLAT_RING_EFFICIENCY)
    is_flat = (x.zero_stage >= x.flat_from_stage) & (group.outside > 1)
    return where(is_flat, maximum(usual, flat), usual)
