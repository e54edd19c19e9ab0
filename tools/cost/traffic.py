"""What each kind of parallelism sends, in seconds on the wire before any overlap.

Tensor, context and expert parallelism are counted per layer and micro-batch, pipeline per micro-batch,
data parallelism per step.
"""

from dataclasses import dataclass

import numpy as np

from tools.cost.collectives import (
    all_to_all_s,
    gather_latency_s,
    gather_s,
    gather_transfer_s,
    neighbour_s,
    place,
    slice_devices,
)
from tools.cost.constants import Coefficients
from tools.cost.inputs import Array, Inputs
from tools.cost.sizes import dense_shards, expert_ranks, expert_shards


def tensor_pair_s(x: Inputs, c: Coefficients) -> Array:
    """One all-reduce of the hidden state, or the all-gather and reduce-scatter of sequence parallelism, which
    move the same bytes (Korthikanti et al., arXiv 2205.05198, section 4.2.2)."""
    group = place(x, x.tp, np.ones(()))
    passes = 2.0 + np.where(x.sequence_parallel > 0, x.scatter_passes - 1.0, 0.0)
    return passes * gather_s(x, c, group, x.tokens * x.hidden * x.value_bytes)


def context_s(x: Inputs, c: Coefficients) -> Array:
    """Ring exchange of keys and values, backward with their gradients too (Liu et al., arXiv 2310.01889)."""
    hop_s = neighbour_s(x, c, place(x, x.cp, x.tp), ring_block_bytes(x))
    return 3.0 * (x.cp - 1.0) * hop_s


def ring_block_bytes(x: Inputs) -> Array:
    """Keys and values of a rank's part of the sequence; a head that tensor ranks share is sent whole."""
    return x.tokens * np.maximum(x.kv_heads / x.tp, 1.0) * (x.qk_dim + x.v_dim) * x.value_bytes


def ring_merge_s(x: Inputs) -> Array:
    """Each step of the ring rescales the fp32 partial output forward and adds fp32 partial gradients of q, k
    and v backward (Transformer Engine, attention with context parallelism)."""
    outputs = x.heads * x.v_dim / x.tp
    gradients = (x.heads * x.qk_dim + x.kv_heads * (x.qk_dim + x.v_dim)) / x.tp
    merged_bytes = 8.0 * x.tokens * (outputs + gradients)
    return np.where(x.cp > 1, x.cp * merged_bytes / x.memory_bandwidth, 0.0)


def mixer_exchange_s(x: Inputs, c: Coefficients) -> Array:
    """A recurrence needs whole sequences: ranks exchange heads for tokens and back, forward and backward
    (Megatron-Core's mamba_context_parallel.py)."""
    sent_bytes = x.tokens * (x.mixer_in + x.mixer_out) / x.tp * x.value_bytes
    return 2.0 * all_to_all_s(x, c, place(x, x.cp, x.tp), sent_bytes, np.ones(()))


def expert_s(x: Inputs, c: Coefficients) -> Array:
    """Dispatch and combine, forward and backward, of one layer; and the gathers inside a sharded expert."""
    sent_bytes = x.tokens / x.tp * x.etp * x.experts_per_token * x.moe_hidden * x.value_bytes
    exchange_s = all_to_all_s(x, c, place(x, x.ep, x.etp), sent_bytes / x.etp, x.experts_per_token)
    inner_s = gather_s(x, c, place(x, x.etp, np.ones(())), sent_bytes)
    return 4.0 * (exchange_s + np.where(x.etp > 1, inner_s, 0.0))


def pipeline_s(x: Inputs, c: Coefficients) -> Array:
    """Activations to the next stage and gradients back, for every model chunk of a stage."""
    message_bytes = x.tokens * x.hidden * x.value_bytes / x.sequence_parallel_degree
    group = place(x, x.pp, x.tp * x.cp * x.dp)
    return 2.0 * x.vpp * neighbour_s(x, c, group, message_bytes)


def intra_node_hop_share(x: Inputs) -> Array:
    """Share of the hops from the first stage to the last that stay inside a node and take next to no time.
    Only for flat libraries, whose nodes have one slow card; elsewhere every hop counts as the slowest."""
    group = place(x, x.pp, x.tp * x.cp * x.dp)
    crossing = (group.outside - 1.0) / np.maximum(x.pp - 1.0, 1.0)
    return np.where((x.flat_rings > 0) & (group.outside > 1), 1.0 - crossing, 0.0)


@dataclass(frozen=True)
class DataTraffic:
    """Seconds a step, split by when it can run and by whether compute can hide it."""

    step_end: Array
    """Gradients and updated parameters, once a step."""
    every_micro_batch: Array
    """ZeRO-3: parameters gathered twice and gradients scattered; ZeRO-2: gradients scattered."""
    latency: Array
    """Hops of wide rings, for the whole step: nothing hides them, since each message waits for the last."""

    def __add__(self, other: "DataTraffic") -> "DataTraffic":
        return DataTraffic(
            self.step_end + other.step_end,
            self.every_micro_batch + other.every_micro_batch,
            self.latency + other.latency,
        )


def data_s(x: Inputs, c: Coefficients, dense: Array, expert: Array, layers: Array) -> DataTraffic:
    """Data parallelism of a stage with `dense` and `expert` parameters on a rank, a message a layer."""
    traffic = _sharded_s(x, c, dense, x.dp * x.cp, x.tp, dense_shards(x), layers)
    if not np.any(expert):
        return traffic
    return traffic + _sharded_s(x, c, expert, expert_ranks(x), x.ep * x.etp, expert_shards(x), layers)


def _sharded_s(
    x: Inputs, c: Coefficients, parameters: Array, ranks: Array, stride: Array, shards: Array, layers: Array
) -> DataTraffic:
    messages = np.where(parameters > 0, layers, 0.0)
    domain = slice_devices(x)
    shard_group = place(x, shards, stride, domain)
    replica_group = place(x, ranks / shards, stride * shards, domain)
    layer_bytes = parameters / layers * x.value_bytes
    one_pass = messages * gather_transfer_s(x, c, shard_group, layer_bytes)
    replicas = 2.0 * messages * gather_transfer_s(x, c, replica_group, layer_bytes / shards)
    # each micro-batch: ZeRO-3 gathers twice and scatters, ZeRO-2 scatters; the rest waits for the step's end
    scatter = x.scatter_passes
    each = np.select([x.zero >= 3, x.zero >= 2], [2.0 + scatter, scatter], 0.0)
    at_end = np.select([x.zero >= 3, x.zero >= 2], [0.0, 1.0], 1.0 + scatter)
    passes = each * x.micro_batches + at_end
    latency = messages * (
        passes * gather_latency_s(x, c, shard_group) + 2.0 * gather_latency_s(x, c, replica_group)
    )
    return DataTraffic(at_end * one_pass + replicas, each * one_pass, latency)
