"""The whole step: the slowest stage over all micro-batches, pipeline bubble, data parallelism, optimizer."""

from dataclasses import dataclass, fields

import numpy as np

from tools.cost.coefficients import Coefficients
from tools.cost.inputs import Array, Columns, Inputs
from tools.cost.sizes import (
    Stages,
    dense_shards,
    expert_shards,
    layer_parameters,
    stages,
    vocabulary_parameters,
)
from tools.cost.stage import StageTime, head_time, layer_time, not_hidden, stage_time
from tools.cost.traffic import data_s, quick_hops

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
class Core(Columns):
    """What does not depend on how data parallelism is sharded."""

    stage: StageTime
    bubble: Array
    dense: Array
    expert: Array
    layers: Array


def step_breakdown(x: Inputs, c: Coefficients) -> Breakdown:
    return with_data_parallelism(x, c, step_core(x, c))


def step_core(x: Inputs, c: Coefficients) -> Core:
    """The slowest stage, the bubble, and the parameters that data parallelism will have to move."""
    lay = stages(x)
    slowest, mean_s = _slowest_stage(x, c, lay)
    dense, expert = layer_parameters(x, lay.moe_share)
    rest = np.where(x.zero_bubble > 0, ZERO_BUBBLE_REST, 1.0)
    return Core(
        stage=slowest,
        bubble=(x.pp - 1.0) * (mean_s - slowest.pp * quick_hops(x)) / x.vpp * rest,
        dense=dense * lay.inner + vocabulary_parameters(x) * np.where(x.pp > 1, 1.0, 2.0 - x.tied),
        expert=expert * lay.inner,
        layers=lay.inner,
    )


def with_data_parallelism(x: Inputs, c: Coefficients, core: Core) -> Breakdown:
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


def _data_exposed_s(x: Inputs, c: Coefficients, core: Core) -> Array:
    """ZeRO-2's and -3's traffic hides under each micro-batch, the step's end under what that leaves of the
    last one; latency under nothing. Time that the host adds hides traffic as well as compute does."""
    sent = data_s(x, c, core.dense, core.expert, core.layers)
    window = core.stage.compute + core.stage.elementwise + core.stage.host
    each = not_hidden(sent.every_micro_batch, window, c.dp_exposed)
    left = np.maximum(window - sent.every_micro_batch, 0.0)
    once = not_hidden(sent.step_end, left, c.dp_exposed)
    return once + x.micro_batches * each + sent.latency


def _optimizer_s(x: Inputs, c: Coefficients, core: Core) -> Array:
    local = core.dense / dense_shards(x) + core.expert / expert_shards(x)
    return local * OPTIMIZER_BYTES * c.optimizer_traffic / x.memory_bandwidth
