"""Time of a training step: one micro-batch on one pipeline stage, then the slowest stage over all micro-
batches, with pipeline bubble, data parallelism and optimizer.
"""

from dataclasses import dataclass, fields

import numpy as np

from tools.cost.constants import Coefficients
from tools.cost.inputs import Array, Columns, Inputs
from tools.cost.kernels import BACKWARD_ATTENTION_FLOPS
from tools.cost.layers import Work, expert_block, head_block, mixing_block, mlp_block
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

KERNELS_PER_LAYER = 60.0
"""Launches of one layer, forward and backward together, counted in eager profiles of Megatron and FSDP."""
KERNELS_OF_HEAD = 10.0
FORWARD_LAUNCH_SHARE = 0.4
"""Share of a layer's launches that belong to its forward pass, which recomputation repeats."""


@dataclass(frozen=True)
class StageTime(Columns):
    """Seconds of one micro-batch."""

    compute: Array
    elementwise: Array
    tp: Array
    cp: Array
    ep: Array
    pp: Array
    host: Array

    @property
    def device(self) -> Array:
        """All but what the host adds."""
        return self.compute + self.elementwise + self.tp + self.cp + self.ep + self.pp

    @property
    def total(self) -> Array:
        return self.device + self.host


def layer_time(x: Inputs, c: Coefficients, moe_share: Array) -> StageTime:
    """An average layer; `host` is the time to launch it, not yet what that adds."""
    mixing, core_forward = mixing_block(x, c)
    work = mixing + mlp_block(x, c, x.ffn).scaled(dense_share(x, moe_share))
    ep: Array = np.zeros(())
    full = np.where(x.recompute >= 2, 1.0, 0.0)
    if np.any(x.moe_layers):
        work = work + expert_block(x, c).scaled(moe_share)
        ep = moe_share * expert_s(x, c) * (1.0 + 0.5 * full) * c.ep_exposed
    again = _recomputed(x, c, work, core_forward)
    tp_allreduces_per_layer = (2.0 - moe_share + x.mixing_offset + x.dense_offset) * (2.0 + full)
    attention_s = core_forward * (1.0 + BACKWARD_ATTENTION_FLOPS) / np.maximum(x.attention_share, 1e-9)
    cp = not_hidden(context_s(x, c), attention_s, c.cp_exposed) + ring_merge_s(x)
    cp = cp * x.attention_share
    if np.any(x.mixer_share):
        cp = cp + mixer_exchange_s(x, c) * x.mixer_share
    experts_held = x.experts / x.ep
    kernels = KERNELS_PER_LAYER * (1.0 + FORWARD_LAUNCH_SHARE * again)
    kernels = kernels + moe_share * (c.host_moe_kernels + c.host_expert_kernels * experts_held)
    return StageTime(
        compute=work.forward * (1.0 + again) + work.backward,
        elementwise=work.forward_elementwise * (1.0 + again) + work.backward_elementwise,
        tp=np.where(x.tp > 1, tensor_pair_s(x, c) * tp_allreduces_per_layer * c.tp_exposed, 0.0),
        cp=cp,
        ep=ep,
        pp=np.zeros(()),
        host=kernels * c.host_kernel_s,
    )


def _recomputed(x: Inputs, c: Coefficients, work: Work, core_forward: Array) -> Array:
    """Share of the forward pass that backward repeats. Without fused attention, selective recomputation
    repeats the attention core (Korthikanti et al., arXiv 2205.05198, section 5)."""
    whole = work.forward + work.forward_elementwise
    selective = np.where(x.flash > 0, c.selective_recompute, core_forward / whole)
    return np.select([x.recompute <= 0, x.recompute < 2], [0.0, selective], 1.0)


def head_time(x: Inputs, c: Coefficients) -> StageTime:
    work, zero = head_block(x, c), np.zeros(())
    return StageTime(
        compute=work.forward + work.backward,
        elementwise=work.forward_elementwise + work.backward_elementwise,
        tp=np.where(x.tp > 1, tensor_pair_s(x, c) * c.tp_exposed, 0.0),
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
    gaps = KERNELS_PER_LAYER * layers * x.launch_s
    return StageTime(**parts, host=_excess(launching, device + gaps) + gaps + c.micro_batch_overhead_s)


def _excess(launching: Array, running: Array) -> Array:
    """By how much launching is slower than running: a smooth maximum, since kernels vary in length."""
    ratio = launching / np.maximum(running, 1e-12)
    squared = ratio * ratio
    return running * (np.sqrt(np.sqrt(1.0 + squared * squared)) - 1.0)


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
    dp = _data_exposed_s(x, c, core)
    optimizer = _optimizer_s(x, c, core)
    waiting = c.scale_jitter * np.log2(np.maximum(x.devices, 1.0))
    busy = stage.device * m + core.bubble + dp + optimizer
    return Breakdown(
        compute=stage.compute * m,
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
    inner = stage_time(x, c, layer, lay.inner, head, np.where(x.pp > 1, 0.0, 1.0))
    last = stage_time(x, c, layer, lay.last, head, np.ones(()))
    last_is_slower = last.total > inner.total
    slowest = StageTime(
        *(np.where(last_is_slower, getattr(last, f.name), getattr(inner, f.name)) for f in fields(StageTime))
    )
    return slowest, (inner.total * (x.pp - 1.0) + last.total) / x.pp


def _data_exposed_s(x: Inputs, c: Coefficients, core: BeforeDataParallel) -> Array:
    """ZeRO-2's and -3's traffic hides under each micro-batch, the step's end under what that leaves of the
    last one; latency under nothing. Time that the host adds hides traffic as well as compute does."""
    sent = data_s(x, c, core.dense, core.expert, core.layers)
    window = core.stage.compute + core.stage.elementwise + core.stage.host
    each = not_hidden(sent.every_micro_batch, window, c.dp_exposed)
    left = np.maximum(window - sent.every_micro_batch, 0.0)
    once = not_hidden(sent.step_end, left, c.dp_exposed)
    return once + x.micro_batches * each + sent.latency


def _optimizer_s(x: Inputs, c: Coefficients, core: BeforeDataParallel) -> Array:
    local = core.dense / dense_shards(x) + core.expert / expert_shards(x)
    return local * OPTIMIZER_BYTES * c.optimizer_traffic / x.memory_bandwidth
