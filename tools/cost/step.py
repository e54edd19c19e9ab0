"""Time of a training step: one micro-batch on one pipeline stage, then the slowest stage over all micro-
batches, with pipeline bubble, data parallelism and optimizer.
"""

from dataclasses import dataclass, fields

import numpy as np

from tools.cost.constants import Coefficients
from tools.cost.inputs import Array, Columns, Inputs
from tools.cost.kernels import BACKWARD_ATTENTION_FLOPS
from tools.cost.layers import (
    Work,
    expert_block,
    head_block,
    latent_up_s,
    mixing_block,
    mlp_block,
    routed,
)
from tools.cost.sizes import (
    Stages,
    dense_shards,
    dense_share,
    expert_shards,
    layer_parameters,
    stages,
    vocabulary_parameters,
)
from tools.cost.traffic import (
    context_s,
    data_s,
    expert_s,
    intra_node_hop_share,
    mixer_exchange_s,
    pipeline_s,
    ring_merge_s,
    tensor_pair_s,
)

KERNELS_OF_HEAD = 10.0
HOST_EXPERT_KERNELS = 12.0
"""Launches for each expert that a rank holds: Transformer Engine's grouped linear casts one at a time."""
GRAPH_GAP = 0.3
"""Gap between kernels in a CUDA graph over that between launched ones: an assumption, 0.5 of 1.5 us."""
OVERLAPPED_EXPERTS_COST = 0.2
"""What an exchange under another micro-batch costs it: DeepEP takes about 20 of 132 multiprocessors."""
FORWARD_LAUNCH_SHARE = 0.4
"""Share of a layer's launches that belong to its forward pass, which recomputation repeats."""


@dataclass(frozen=True)
class StageTime(Columns):
    """Seconds of one micro-batch."""

    compute: Array
    recompute: Array
    elementwise: Array
    tp: Array
    cp: Array
    ep: Array
    pp: Array
    host: Array

    @property
    def device(self) -> Array:
        """All but what the host adds."""
        return self.compute + self.recompute + self.elementwise + self.tp + self.cp + self.ep + self.pp

    @property
    def total(self) -> Array:
        return self.device + self.host


def layer_time(x: Inputs, c: Coefficients, moe_share: Array) -> StageTime:
    """An average layer; `host` is the time to launch it, not yet what that adds."""
    mixing, core_forward = mixing_block(x, c)
    mlp = mlp_block(x, c, x.ffn).scaled(dense_share(x, moe_share))
    work = mixing + mlp
    full = np.where(x.recompute >= 2, np.minimum(x.recomputed_layers / stages(x).inner, 1.0), 0.0)
    experts = None
    if np.any(x.moe_layers):
        experts = expert_block(x, c).scaled(moe_share)
        work = work + experts
    whole = work.forward + work.forward_elementwise
    stated = x.repeats_stated > 0
    repeated_s = _stated_modules_s(x, c, moe_share, core_forward, mlp, experts) if np.any(stated) else 0.0
    again_s = _recomputed_s(x, c, whole, core_forward, work.last, repeated_s, full)
    repeats_experts = np.where((x.recompute == 1) & stated, x.repeats_experts, full)
    return StageTime(
        compute=work.forward + work.backward,
        recompute=again_s,
        elementwise=work.forward_elementwise + work.backward_elementwise,
        tp=_tensor_exposed_s(x, c, moe_share, full),
        cp=_context_exposed_s(x, c, core_forward),
        ep=np.zeros(()) if experts is None else _experts_exposed_s(x, c, moe_share, repeats_experts, whole),
        pp=np.zeros(()),
        host=_kernels(x, c, moe_share, _launched_again(x, full)) * c.host_kernel_s,
    )


def _tensor_exposed_s(x: Inputs, c: Coefficients, moe_share: Array, full: Array) -> Array:
    """A pair of messages for each part of a layer, both ways, and again for what is recomputed."""
    pairs = 2.0 - moe_share + x.mixing_offset + x.dense_offset
    pairs = 2.0 * pairs + full * np.maximum(pairs - x.stops_early, 0.0)
    return np.where(x.tp > 1, tensor_pair_s(x, c) * pairs * tensor_exposed(x, c), 0.0)


def _context_exposed_s(x: Inputs, c: Coefficients, core_forward: Array) -> Array:
    """Rings of keys and values under the attention core; other mixers exchange heads for tokens."""
    window = core_forward * (1.0 + BACKWARD_ATTENTION_FLOPS) / np.maximum(x.attention_share, 1e-9)
    ring = not_hidden(context_s(x, c), window, c.cp_exposed) + ring_merge_s(x)
    if not np.any(x.mixer_share):
        return ring * x.attention_share
    return ring * x.attention_share + mixer_exchange_s(x, c) * x.mixer_share


def _launched_again(x: Inputs, full: Array) -> Array:
    """Share of a layer's forward launches that recomputation repeats."""
    selective = np.where(x.repeats_stated > 0, MODULES_LAUNCHED, np.maximum(x.selective_share, CORE_LAUNCHED))
    return np.select([x.recompute <= 0, x.recompute < 2], [0.0, selective], full)


CORE_LAUNCHED, MODULES_LAUNCHED = 0.05, 0.3
"""Of a layer's forward launches: fused attention alone, and a few named modules; assumptions."""


def _kernels(x: Inputs, c: Coefficients, moe_share: Array, again: Array) -> Array:
    """Launches of a layer, both ways; `again` is the share of its forward pass that is repeated."""
    kernels = x.kernels_per_layer * (1.0 + FORWARD_LAUNCH_SHARE * again)
    pipelined = np.where(x.pp > 1, x.pipelined_tensor_kernels * x.tp, 0.0)
    kernels = kernels + np.where(x.tp > 1, np.maximum(x.tensor_kernels, pipelined), 0.0)
    return kernels + moe_share * (c.host_moe_kernels + HOST_EXPERT_KERNELS * x.experts / x.ep)


def _experts_exposed_s(x: Inputs, c: Coefficients, moe_share: Array, repeats: Array, window: Array) -> Array:
    """Dispatch and combine that compute does not hide. Without fused kernels they wait for permutations and
    for the sizes; with the overlap of 1F1B (DualPipe, arXiv 2412.19437, section 3.2.1) only what exceeds the
    other micro-batch's forward and backward pass is left, and a share of the rest."""
    slow = np.where(x.has_fused_dispatch > 0, 1.0, c.alltoall_cost)
    sent = moe_share * expert_s(x, c) * (1.0 + 0.5 * repeats) * slow
    overlapped = not_hidden(sent, 3.0 * window, OVERLAPPED_EXPERTS_COST * np.ones(()))
    return np.where(x.expert_overlap > 0, overlapped, sent) * c.ep_exposed


def tensor_exposed(x: Inputs, c: Coefficients) -> Array:
    """Share of tensor-parallel messages that products do not hide."""
    return np.where(x.tensor_overlap > 0, c.tp_exposed, 1.0)


def _recomputed_s(
    x: Inputs,
    c: Coefficients,
    whole: Array,
    core_forward: Array,
    last: Array,
    stated_s: Array | float,
    full: Array,
) -> Array:
    """Of the forward pass, what backward repeats. Megatron's selective recomputation repeats the attention
    core (Korthikanti et al., arXiv 2205.05198, section 5), other frameworks' a share of all."""
    shared = x.selective_share * c.selective_recompute * whole
    selective = np.where(x.selective_share > 0, shared, core_forward)
    selective = np.where(x.repeats_stated > 0, stated_s, selective)
    every = (whole - x.stops_early * last) * full
    return np.select([x.recompute <= 0, x.recompute < 2], [0.0, selective], every)


def _stated_modules_s(
    x: Inputs, c: Coefficients, moe_share: Array, core_forward: Array, mlp: Work, experts: Work | None
) -> Array:
    """Forward seconds of the modules that `recompute_modules` names."""
    norms = 4.0 * x.tokens * x.hidden / x.sequence_parallel_degree * x.value_bytes * c.elementwise_traffic
    total = x.repeats_core * core_forward + x.repeats_norm * norms / x.memory_bandwidth
    total = total + x.repeats_mlp * (mlp.forward + mlp.forward_elementwise)
    if np.any(x.repeats_latent):
        total = total + x.repeats_latent * latent_up_s(x, c)
    if experts is None:
        return total
    _, rows, width = routed(x)
    activation = rows * (x.up_matrices + 1.0) * width * x.value_bytes / x.memory_bandwidth
    shared = mlp_block(x, c, x.shared_ffn)
    shared_s = np.where(x.shared_ffn > 0, shared.forward + shared.forward_elementwise, 0.0)
    # what is inside the experts' module is repeated with it, once
    apart = x.repeats_activation * activation * c.elementwise_traffic + x.repeats_shared * shared_s
    total = total + x.repeats_experts * (experts.forward + experts.forward_elementwise)
    return total + moe_share * (1.0 - x.repeats_experts) * apart


def head_time(x: Inputs, c: Coefficients) -> StageTime:
    work, zero = head_block(x, c), np.zeros(())
    return StageTime(
        compute=work.forward + work.backward,
        recompute=zero,
        elementwise=work.forward_elementwise + work.backward_elementwise,
        tp=np.where(x.tp > 1, tensor_pair_s(x, c) * tensor_exposed(x, c), 0.0),
        cp=zero,
        ep=zero,
        pp=zero,
        host=KERNELS_OF_HEAD * c.host_kernel_s,
    )


def stage_time(
    x: Inputs, c: Coefficients, layer: StageTime, layers: Array, head: StageTime, heads: Array
) -> StageTime:
    """A stage of `layers` layers and, where `heads` is 1, the output head."""
    parts = {
        f.name: getattr(layer, f.name) * layers + getattr(head, f.name) * heads for f in fields(StageTime)
    }
    launching = parts.pop("host")
    parts["pp"] = np.where(x.pp > 1, pipeline_s(x, c) * c.pp_exposed, 0.0)
    device = sum(parts.values(), np.zeros(()))
    gaps = x.kernels_per_layer * layers * x.launch_s
    launching = np.where(x.has_cuda_graph > 0, 0.0, launching)
    gaps = np.where(x.has_cuda_graph > 0, GRAPH_GAP * gaps, gaps)
    return StageTime(**parts, host=_excess(x, launching, device + gaps) + gaps + c.micro_batch_overhead_s)


def _excess(x: Inputs, launching: Array, running: Array) -> Array:
    """By how much launching is slower than running: a smooth maximum, since kernels vary in length. Routing
    without a capacity reads the number of tokens of each expert back, so the host cannot run ahead."""
    ratio = launching / np.maximum(running, 1e-12)
    squared = ratio * ratio
    ahead = np.sqrt(np.sqrt(1.0 + squared * squared)) - 1.0
    is_dropless = (x.moe_layers > 0) & (x.capacity <= 0)
    return running * np.where(is_dropless, np.sqrt(1.0 + squared) - 1.0, ahead)


def not_hidden(sent: Array, window: Array, cost: Array) -> Array:
    """Communication that `window` of compute cannot hide, plus what the hidden part costs the compute."""
    hidden = np.minimum(sent, window)
    return sent - hidden + cost * hidden


OPTIMIZER_BYTES = 30.0
"""Adam reads gradient, master weight and two moments and writes three of them and the 16-bit copy."""
ZERO_BUBBLE_REST = 1.0 / 3.0
"""Bubble left when weight gradients fill the gaps (ZB-H1; Qi et al., arXiv 2401.10241, section 2.1)."""


@dataclass(frozen=True)
class Breakdown(Columns):
    """Seconds of one step; the parts add up to the step time."""

    compute: Array
    recompute: Array
    memory_bound_ops: Array
    tp_comm_exposed: Array
    cp_comm_exposed: Array
    ep_comm_exposed: Array
    dp_comm_exposed: Array
    pp_comm_exposed: Array
    pipeline_bubble: Array
    optimizer: Array
    host_and_other: Array

    @property
    def total(self) -> Array:
        return sum((getattr(self, f.name) for f in fields(self)), np.zeros(()))


@dataclass(frozen=True)
class BeforeDataParallel(Columns):
    """What does not depend on how data parallelism is sharded."""

    stage: StageTime
    bubble: Array
    dense: Array
    expert: Array
    layers: Array


def step_breakdown(x: Inputs, c: Coefficients) -> Breakdown:
    return with_data_parallelism(x, c, step_core(x, c))


def step_core(x: Inputs, c: Coefficients) -> BeforeDataParallel:
    """The slowest stage, the bubble, and the parameters that data parallelism will have to move."""
    lay = stages(x)
    slowest, mean_s = _slowest_stage(x, c, lay)
    dense, expert = layer_parameters(x, lay.moe_share)
    rest = np.where(x.zero_bubble > 0, ZERO_BUBBLE_REST, 1.0)
    return BeforeDataParallel(
        stage=slowest,
        bubble=(x.pp - 1.0) * (mean_s - slowest.pp * intra_node_hop_share(x)) / x.vpp * rest,
        dense=dense * lay.inner + vocabulary_parameters(x) * np.where(x.pp > 1, 1.0, 2.0 - x.tied),
        expert=expert * lay.inner,
        layers=lay.inner,
    )


def with_data_parallelism(x: Inputs, c: Coefficients, core: BeforeDataParallel) -> Breakdown:
    """The step: `core` over all micro-batches, and what ZeRO's sharding adds."""
    stage, m = core.stage, x.micro_batches
    dp = data_exposed(x, c, core).total(m)
    optimizer = _optimizer_s(x, c, core)
    waiting = c.scale_jitter * np.log2(np.maximum(x.devices, 1.0))
    busy = stage.device * m + core.bubble + dp + optimizer
    return Breakdown(
        compute=stage.compute * m,
        recompute=stage.recompute * m,
        memory_bound_ops=stage.elementwise * m,
        tp_comm_exposed=stage.tp * m,
        cp_comm_exposed=stage.cp * m,
        ep_comm_exposed=stage.ep * m,
        dp_comm_exposed=dp,
        pp_comm_exposed=stage.pp * m,
        pipeline_bubble=core.bubble,
        optimizer=optimizer,
        host_and_other=stage.host * m + c.step_overhead_s + waiting * busy,
    )


def _slowest_stage(x: Inputs, c: Coefficients, lay: Stages) -> tuple[StageTime, Array]:
    """The stage that sets the pace, and a stage's mean time, which sets the bubble of 1F1B and interleaved
    schedules (Narayanan et al., arXiv 2104.04473, section 2.2)."""
    layer, head = layer_time(x, c, lay.moe_share), head_time(x, c)
    heads = 1.0 + x.prediction_layers
    inner = stage_time(x, c, layer, lay.inner, head, np.where(x.pp > 1, 0.0, heads))
    last = stage_time(x, c, layer, lay.last, head, heads)
    last_is_slower = last.total > inner.total
    slowest = StageTime(
        *(np.where(last_is_slower, getattr(last, f.name), getattr(inner, f.name)) for f in fields(StageTime))
    )
    return slowest, (inner.total * (x.pp - 1.0) + last.total) / x.pp


@dataclass(frozen=True)
class DataExposed:
    """Seconds of data-parallel traffic that nothing hides."""

    every_micro_batch: Array
    end: Array

    def total(self, micro_batches: Array) -> Array:
        return self.end + micro_batches * self.every_micro_batch


def data_exposed(x: Inputs, c: Coefficients, core: BeforeDataParallel) -> DataExposed:
    """ZeRO-2's and -3's traffic hides under each micro-batch, the step's end under what that leaves of the
    last ones. Time that the host adds hides traffic as well as compute does."""
    sent = data_s(x, c, core.dense, core.expert, core.layers)
    stage = core.stage
    window = stage.compute + stage.recompute + stage.elementwise + stage.host
    window = np.where(x.data_overlap > 0, window, 0.0)
    each = not_hidden_bytes(x, c, sent.every_micro_batch, window, sent.micro_batch_bytes)
    # chunks of an interleaved stage finish one after the other, each with the last micro-batches of the next
    chunks_left = 1.0 + (np.minimum(x.pp, x.micro_batches) - 1.0) * (x.vpp - 1.0) / x.vpp
    left = np.maximum(window * chunks_left - sent.every_micro_batch, 0.0)
    scatter = not_hidden_bytes(x, c, sent.end_scatter, left * BACKWARD_SHARE, sent.scatter_bytes)
    gather = not_hidden_bytes(x, c, sent.end_gather, left * (1.0 - BACKWARD_SHARE), sent.gather_bytes)
    return DataExposed(each, scatter + gather)


BACKWARD_SHARE = 2.0 / 3.0
"""Of a micro-batch: gradients are reduced under the backward pass, parameters gathered under forward."""


def not_hidden_bytes(x: Inputs, c: Coefficients, sent: Array, window: Array, moved_bytes: Array) -> Array:
    """Traffic that `window` of compute cannot hide, plus what the hidden part costs: its bytes compete for
    the device's memory, its kernels for multiprocessors."""
    hidden = np.minimum(sent, window)
    moved_s = moved_bytes / x.memory_bandwidth * hidden / np.maximum(sent, 1e-12)
    return sent - hidden + np.minimum(c.dp_exposed * hidden + moved_s, hidden)


def _optimizer_s(x: Inputs, c: Coefficients, core: BeforeDataParallel) -> Array:
    """Adam over the parameters that a rank updates; on the host, it waits for gradients to arrive, for the
    host's memory, and for the weights to come back."""
    local = (core.dense / dense_shards(x) + core.expert / expert_shards(x)) * x.trained_share
    on_device = local * OPTIMIZER_BYTES * c.optimizer_traffic / x.memory_bandwidth
    copied_s = local * (x.reduced_bytes + x.value_bytes) / x.host_link
    on_host = copied_s + local * OPTIMIZER_BYTES / HOST_MEMORY_PER_DEVICE
    return np.where(x.offloads_optimizer > 0, on_host, on_device)


HOST_MEMORY_PER_DEVICE = 50e9
"""Bytes per second of host memory that one device's share of the processors reaches: 400 GB/s over eight."""
