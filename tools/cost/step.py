"""The whole step: what the slowest stage computes, what communication is not hidden, bubble and overheads."""

from dataclasses import dataclass, fields

import numpy as np

from tools.cost.coefficients import Coefficients
from tools.cost.inputs import Array, Inputs
from tools.cost.layers import Work, attention_block, expert_block, head_block, mlp_block
from tools.cost.sizes import layer_parameters, stages, vocabulary_parameters
from tools.cost.traffic import context_s, data_s, expert_s, pipeline_s, tensor_pair_s

KERNELS_PER_LAYER = 60.0
"""Launches of one layer, forward and backward together, counted in eager profiles of Megatron and FSDP."""
OPTIMIZER_BYTES = 30.0
"""Adam reads gradient, master weight and two moments and writes three of them and the 16-bit copy."""


@dataclass(frozen=True)
class Breakdown:
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
class StageTime:
    """Seconds of one micro-batch on one stage."""

    compute: Array
    elementwise: Array
    tp: Array
    cp: Array
    ep: Array
    pp: Array
    host: Array

    @property
    def total(self) -> Array:
        return sum((getattr(self, f.name) for f in fields(self)), np.zeros(()))


def step_breakdown(x: Inputs, c: Coefficients) -> Breakdown:
    lay = stages(x)
    layer = _layer_time(x, c, lay.moe_share)
    head = _head_time(x, c)
    inner = _stage(x, c, layer, lay.inner, head, np.where(x.pp > 1, 0.0, 1.0))
    last = _stage(x, c, layer, lay.last, head, np.ones(()))
    slowest = _pick(last.total > inner.total, last, inner)
    m = x.micro_batches
    mean = (inner.total * (x.pp - 1.0) + last.total) / x.pp
    bubble = (x.pp - 1.0) * mean / x.vpp * np.where(x.zero_bubble > 0, 1.0 / 3.0, 1.0)
    compute, elementwise = slowest.compute * m, slowest.elementwise * m
    dense, expert = layer_parameters(x, lay.moe_share)
    dense = dense * lay.inner + vocabulary_parameters(x) * np.where(x.pp > 1, 1.0, 2.0 - x.tied)
    expert = expert * lay.inner
    dp = _data_exposed(x, c, dense, expert, lay.inner, slowest)
    optimizer = _optimizer_s(x, c, dense, expert)
    parts = [compute, elementwise, slowest.tp * m, slowest.cp * m, slowest.ep * m, dp, slowest.pp * m, bubble, optimizer]
    busy = sum(parts, np.zeros(()))
    jitter = busy * c.scale_jitter * np.log2(np.maximum(x.devices, 1.0))
    return Breakdown(*parts, host_and_other=slowest.host * m + c.step_overhead_s + jitter)


def _layer_time(x: Inputs, c: Coefficients, moe_share: Array) -> StageTime:
    block, core_forward = attention_block(x, c)
    work = block + mlp_block(x, c, x.ffn).scaled(1.0 - moe_share)
    moe = x.moe_layers > 0
    any_moe = bool(np.any(moe))
    if any_moe:
        work = work + expert_block(x, c).scaled(np.where(moe, moe_share, 0.0))
    again = _recomputed(x, c, work, core_forward)
    attention_backward = core_forward * 2.5
    compute = work.forward * (1.0 + again) + work.backward
    elementwise = work.forward_elementwise * (1.0 + again) + work.backward_elementwise
    pairs = (2.0 - moe_share) * (2.0 + np.where(x.recompute >= 2, 1.0, 0.0))
    tp = np.where(x.tp > 1, tensor_pair_s(x, c) * pairs * c.tp_exposed, 0.0)
    cp = _beyond(context_s(x, c), core_forward + attention_backward, c.cp_exposed)
    ep = moe_share * expert_s(x, c) * (1.0 + 0.5 * np.where(x.recompute >= 2, 1.0, 0.0)) * c.ep_exposed if any_moe else np.zeros(())
    kernels = KERNELS_PER_LAYER * (1.0 + 0.4 * again) + moe_share * (c.host_moe_kernels + c.host_expert_kernels * x.experts / x.ep)
    host = kernels * c.host_kernel_s
    return StageTime(compute, elementwise, tp, cp, ep, np.zeros(()), host)


def _recomputed(x: Inputs, c: Coefficients, work: Work, core_forward: Array) -> Array:
    """Share of the forward pass that backward repeats."""
    whole = work.forward + work.forward_elementwise
    selective = np.where(x.flash > 0, c.selective_recompute, core_forward / whole)
    return np.select([x.recompute <= 0, x.recompute < 2], [0.0, selective], 1.0)


def _head_time(x: Inputs, c: Coefficients) -> StageTime:
    work = head_block(x, c)
    tp = np.where(x.tp > 1, tensor_pair_s(x, c) * c.tp_exposed, 0.0)
    zero = np.zeros(())
    return StageTime(
        work.forward + work.backward, work.forward_elementwise + work.backward_elementwise, tp, zero, zero, zero,
        10.0 * c.host_kernel_s,
    )


def _stage(x: Inputs, c: Coefficients, layer: StageTime, layers: Array, head: StageTime, heads: Array) -> StageTime:
    parts = {f.name: getattr(layer, f.name) * layers + getattr(head, f.name) * heads for f in fields(StageTime)}
    device = sum((v for k, v in parts.items() if k != "host"), np.zeros(()))
    parts["host"] = _soft_excess(parts["host"], device) + c.micro_batch_overhead_s
    parts["pp"] = np.where(x.pp > 1, pipeline_s(x, c) * c.pp_exposed, 0.0)
    return StageTime(**parts)


def _soft_excess(host: Array, device: Array) -> Array:
    """By how much launching is slower than running: a smooth maximum, since kernels vary in length."""
    ratio = host / np.maximum(device, 1e-12)
    squared = ratio * ratio
    return device * (np.sqrt(np.sqrt(1.0 + squared * squared)) - 1.0)


def _beyond(sent: Array, window: Array, cost: Array) -> Array:
    """Communication that `window` does not hide, plus what the hidden part costs the compute."""
    hidden = np.minimum(sent, window)
    return sent - hidden + cost * hidden


def _data_exposed(x: Inputs, c: Coefficients, dense: Array, expert: Array, layers: Array, stage: StageTime) -> Array:
    sent = data_s(x, c, dense, expert, layers)
    device = stage.compute + stage.elementwise
    m = x.micro_batches
    once = _beyond(sent.step_end, device, c.dp_exposed)
    return once + m * _beyond(sent.every_micro_batch, device, c.dp_exposed) + sent.latency


def _optimizer_s(x: Inputs, c: Coefficients, dense: Array, expert: Array) -> Array:
    ranks = x.dp * x.cp
    shards = np.minimum(x.dp_shard, ranks)
    expert_shards = np.clip(x.dp_shard * x.tp / (x.ep * x.etp), 1.0, np.maximum(ranks * x.tp / (x.ep * x.etp), 1.0))
    local = dense / shards + expert / expert_shards
    return local * OPTIMIZER_BYTES * c.optimizer_traffic / x.memory_bandwidth


def _pick(condition: Array, yes: StageTime, no: StageTime) -> StageTime:
    return StageTime(*(np.where(condition, getattr(yes, f.name), getattr(no, f.name)) for f in fields(StageTime)))
