"""Time of a training step: the slowest stage over all micro-batches, with pipeline bubble, data parallelism
and optimizer.
"""

from dataclasses import dataclass

import numpy as np

from tools.physics.arithmetic import ZERO, maximum, minimum, where
from tools.physics.inputs import LAYER_FIELDS, SHARDING_FIELDS, Array, Coefficients, Columns, Inputs
from tools.physics.sizes import dense_shards, expert_shards, layer_parameters, vocabulary_parameters
from tools.physics.stage import StageTime, layer_times, stage_time
from tools.physics.traffic import DataTraffic, data_s, intra_node_hop_share, pipeline_s

ZERO_BUBBLE_REST = 1.0 / 3.0
"""Bubble left when weight gradients fill the gaps (ZB-H1; Qi et al., arXiv 2401.10241, section 2.1)."""


BACKWARD_SHARE = 2.0 / 3.0
"""Share of a micro-batch. Gradients are reduced under it, parameters gathered under the forward pass."""
HOST_MEMORY_PER_DEVICE = 50e9
"""Bytes per second of host memory that one device's share of the processors reaches: 400 GB/s over eight."""


@dataclass(frozen=True)
class StepTerms(Columns):
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
        return sum(self.parts, ZERO)


@dataclass(frozen=True)
class BeforeDataParallel(Columns):
    """What does not depend on how data parallelism is sharded."""

    stage: StageTime
    bubble: Array


@dataclass(frozen=True)
class Pace(Columns):
    """What the rest of a step has to know of `BeforeDataParallel`: seconds of all micro-batches that the
    device and the host add, and what a micro-batch can hide."""

    device: Array
    host: Array
    window: Array
    micro_batches: Array
    chunks_left: Array
    """How many chunks of work a stage still has under the last micro-batches: chunks of an interleaved stage
    finish one after the other."""


@dataclass(frozen=True)
class Sharded(Columns):
    """What depends on how parameters are sharded: traffic before any overlap, and the optimizer's seconds."""

    traffic: DataTraffic
    optimizer: Array


def step_terms(x: Inputs, c: Coefficients) -> StepTerms:
    """The step: the slowest stage over all micro-batches, and what ZeRO's sharding adds."""
    core = step_core(x, c)
    sharded = x.once_per(SHARDING_FIELDS, sharded_parts, c)
    stage, m, pace = core.stage, x.micro_batches, pace_of(x, core)
    dp = data_exposed(x, c, pace, sharded.traffic).total(m)
    return StepTerms(
        compute=stage.compute * m,
        recompute=stage.recompute * m,
        memory_bound_ops=stage.elementwise * m,
        tp_comm_exposed=stage.tp * m,
        cp_comm_exposed=stage.cp * m,
        ep_comm_exposed=stage.ep * m,
        dp_comm_exposed=dp,
        pp_comm_exposed=stage.pp * m,
        pipeline_bubble=core.bubble,
        optimizer=sharded.optimizer,
        host_and_other=pace.host
        + c.step_overhead_s
        + _waiting(x, c) * (pace.device + dp + sharded.optimizer),
    )


def step_core(x: Inputs, c: Coefficients) -> BeforeDataParallel:
    """The stage that sets the pace, and the bubble, which depends on the mean stage (1F1B and interleaved
    schedules: Narayanan et al., arXiv 2104.04473, section 2.2)."""
    times, sent_s, heads = (
        x.once_per(LAYER_FIELDS, layer_times, c),
        pipeline_s(x, c),
        1.0 + x.prediction_heads,
    )
    layer, head = times.layer, times.head
    inner = stage_time(x, c, layer, x.stages.inner, head, where(x.pp > 1, 0.0, heads), sent_s)
    last = stage_time(x, c, layer, x.stages.last, head, heads, sent_s)
    inner_s, last_s = inner.total, last.total
    is_slower = last_s > inner_s
    slowest = StageTime(*(where(is_slower, *pair) for pair in zip(last.parts, inner.parts, strict=True)))
    mean_s = (inner_s * (x.pp - 1.0) + last_s) / x.pp
    rest = where(x.has_schedule("zero_bubble"), ZERO_BUBBLE_REST, 1.0)
    bubble = (x.pp - 1.0) * (mean_s - slowest.pp * intra_node_hop_share(x)) / x.vpp * rest
    return BeforeDataParallel(slowest, bubble)


def pace_of(x: Inputs, core: BeforeDataParallel) -> Pace:
    """Time that the host adds hides traffic as well as compute does."""
    stage, m = core.stage, x.micro_batches
    window = stage.compute + stage.recompute + stage.elementwise + stage.host
    return Pace(
        device=stage.device * m + core.bubble,
        host=stage.host * m,
        window=where(x.data_overlap > 0, window, 0.0),
        micro_batches=m,
        chunks_left=1.0 + (minimum(x.pp, m) - 1.0) * (x.vpp - 1.0) / x.vpp,
    )


def sharded_parts(x: Inputs, c: Coefficients) -> Sharded:
    """Depends on the plan by SHARDING_FIELDS alone."""
    lay = x.stages
    dense, expert = layer_parameters(x, lay.moe_share)
    dense = dense * lay.inner_held + vocabulary_parameters(x) * where(x.pp > 1, 1.0, 2.0 - x.tied)
    expert = expert * lay.inner_held
    # Adam over the parameters that a rank updates; on the host, it waits for gradients to arrive, for the
    # host's memory, and for the weights to come back
    local = (dense / dense_shards(x) + expert / expert_shards(x)) * x.trained_share
    on_device = local * x.optimizer_bytes * c.optimizer_traffic / x.memory_bandwidth
    copied_s = local * (x.reduced_bytes + x.value_bytes) / x.host_link
    on_host = copied_s + local * x.optimizer_bytes / HOST_MEMORY_PER_DEVICE
    optimizer_s = where(x.offloads_optimizer > 0, on_host, on_device)
    return Sharded(data_s(x, c, dense, expert, lay.inner_held), optimizer_s)


def before_sharding_s(x: Inputs, c: Coefficients, pace: Pace) -> Array:
    """A step without data-parallel traffic and optimizer; of `x` only what holds for every plan is read."""
    return pace.device * (1.0 + _waiting(x, c)) + pace.host + c.step_overhead_s


def step_time_s(x: Inputs, c: Coefficients, pace: Pace, sharded: Sharded) -> Array:
    """The sum of `step_terms` from its parts; of `x` only what holds for every plan is read."""
    exposed = data_exposed(x, c, pace, sharded.traffic).total(pace.micro_batches)
    added = exposed + sharded.optimizer
    return before_sharding_s(x, c, pace) + added * (1.0 + _waiting(x, c))


def _waiting(x: Inputs, c: Coefficients) -> Array:
    """Share of the devices' time that the slowest of them adds."""
    return np.asarray(c.scale_jitter * np.log2(maximum(x.devices, 1.0)))


@dataclass(frozen=True)
class DataExposed:
    """Seconds of data-parallel traffic that nothing hides."""

    every_micro_batch: Array
    end: Array

    def total(self, micro_batches: Array) -> Array:
        return self.end + micro_batches * self.every_micro_batch


def data_exposed(x: Inputs, c: Coefficients, pace: Pace, sent: DataTraffic) -> DataExposed:
    """ZeRO-2's and -3's traffic hides under each micro-batch, the step's end under what that leaves of the
    last ones."""
    each = not_hidden_bytes(x, c, sent.every_micro_batch, pace.window, sent.micro_batch_bytes)
    left = maximum(pace.window * pace.chunks_left - sent.every_micro_batch, 0.0)
    scatter = not_hidden_bytes(x, c, sent.end_scatter, left * BACKWARD_SHARE, sent.scatter_bytes)
    gather = not_hidden_bytes(x, c, sent.end_gather, left * (1.0 - BACKWARD_SHARE), sent.gather_bytes)
    return DataExposed(each, scatter + gather)


def not_hidden_bytes(x: Inputs, c: Coefficients, sent: Array, window: Array, moved_bytes: Array) -> Array:
    """Traffic that `window` of compute cannot hide, plus what the hidden part costs: its bytes compete for
    the device's memory, its kernels for multiprocessors."""
    hidden = minimum(sent, window)
    moved_s = moved_bytes / x.memory_bandwidth * hidden / maximum(sent, 1e-12)
    return sent - hidden + minimum(c.dp_exposed * hidden + moved_s, hidden)
