"""The matrix products and messages of one plan as the cost model sees them, for figures and tables.

Products: forward, one micro-batch, one rank, as in `layers.py` and `kernels.py`. Messages: one of each
kind, as in `traffic.py`, before any overlap. Nothing here adds to a prediction. Bus bandwidth as in nccl-
tests (doc/PERFORMANCE.md).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.collectives import (
    Group,
    all_reduce_s,
    all_to_all_s,
    gather_s,
    neighbour_s,
    place,
    slice_devices,
)
from tools.cost.constants import Coefficients
from tools.cost.encode import encode
from tools.cost.inputs import Array, Inputs
from tools.cost.kernels import attention_pairs, attention_s, gemm_moved_bytes, gemm_s
from tools.cost.layers import grouped_ratio, projections, routed
from tools.cost.sizes import causal_keys, dense_shards, expert_ranks, expert_shards, layer_parameters
from tools.cost.traffic import ring_block_bytes, tensor_pair_s
from tools.scenario import Scenario


@dataclass(frozen=True)
class Operation:
    """One product, or all products of a kind that run side by side (experts)."""

    name: str
    shape: str
    flops: float
    moved_bytes: float
    seconds: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.seconds


def list_operations(scenario: Scenario, calibration: Calibration | None = None) -> list[Operation]:
    """Of a scenario with a plan."""
    x, keys = encode([scenario])
    c = (calibration or shipped_calibration()).coefficients(keys)
    mixing = [*(_attention(x, c) if x.attention_share > 0 else ()), *_mixer(x, c)]
    found = [*mixing, *(_experts(x, c) if x.is_moe else ()), *_feed_forward(x, c)]
    return [*found, _product("output head", x, c, x.tokens, x.vocab / x.tp, x.hidden, low_precision=False)]


def _attention(x: Inputs, c: Coefficients) -> Iterator[Operation]:
    shapes = [(n, k) for n, k in projections(x) if n > 0]
    for position, (n, k) in enumerate(shapes):
        name = "attention output" if position == len(shapes) - 1 else "query, key, value"
        yield _product(name, x, c, x.tokens, n, k)
    width = x.qk_dim + x.v_dim
    moved = x.tokens * (x.heads + x.kv_heads) / x.tp * width * x.value_bytes
    seconds, _ = attention_s(x, c)
    shape = f"{x.seq:g} tokens, {x.heads / x.tp:g} heads of {x.v_dim:g}"
    yield _operation("attention core", shape, 2.0 * attention_pairs(x) * width, moved, seconds)


def _mixer(x: Inputs, c: Coefficients) -> Iterator[Operation]:
    if x.mixer_share > 0:
        yield _product("token mixer in", x, c, x.tokens, x.mixer_in / x.tp, x.hidden)
        yield _product("token mixer out", x, c, x.tokens, x.hidden, x.mixer_out / x.tp)


def _feed_forward(x: Inputs, c: Coefficients) -> Iterator[Operation]:
    dense = x.ffn if x.moe_layers < x.layers * (1.0 + x.dense_offset) else np.zeros(())
    for name, width in (("feed-forward", dense), ("shared experts", x.shared_ffn)):
        if width > 0:
            yield _product(f"{name} up", x, c, x.tokens, width / x.tp * x.up_matrices, x.hidden)
            yield _product(f"{name} down", x, c, x.tokens, x.hidden, width / x.tp)


def _experts(x: Inputs, c: Coefficients) -> Iterator[Operation]:
    held, rows, width = routed(x)
    for name, n, k in (
        ("experts up", width * x.up_matrices, x.moe_hidden),
        ("experts down", x.moe_hidden, width),
    ):
        expert = _product(name, x, c, rows / held, n, k)
        yield _operation(
            name,
            f"{held:g} of {expert.shape}",
            expert.flops * held,
            expert.moved_bytes * held,
            expert.seconds * held / grouped_ratio(x, c),
        )


def _product(
    name: str, x: Inputs, c: Coefficients, m: Array, n: Array, k: Array, low_precision: bool = True
) -> Operation:
    moved = gemm_moved_bytes(x, m, n, k, low_precision)
    shape = f"{float(m):,.0f} × {float(n):,.0f} × {float(k):,.0f}"
    return _operation(name, shape, 2.0 * m * n * k, moved, gemm_s(x, c, m, n, k, low_precision))


def _operation(
    name: str, shape: str, flops: Array | float, moved: Array | float, seconds: Array | float
) -> Operation:
    return Operation(name, shape, float(flops), float(moved), float(seconds))


@dataclass(frozen=True)
class ComputeParts:
    """Seconds of one step in attention cores, as predicted and at the device's peak."""

    attention_s: float
    attention_ideal_s: float


def split_compute(scenario: Scenario, calibration: Calibration | None = None) -> ComputeParts:
    """What of the term `compute` is attention, on the stage with the most layers; FLOPs as in
    `sizes.model_flops_per_token`."""
    x, keys = encode([scenario])
    c = (calibration or shipped_calibration()).coefficients(keys)
    lay = x.stages
    layers = np.where(x.pp > 1, np.maximum(lay.inner, lay.last), lay.inner)
    each_s = sum(attention_s(x, c), np.zeros(())) * x.attention_share
    flops = 6.0 * x.layers * x.heads * (x.qk_dim + x.v_dim) * causal_keys(x) * x.attention_share
    ideal_s = flops * x.batch * x.seq / x.devices / x.gemm_peak
    return ComputeParts(float(np.squeeze(each_s * layers * x.micro_batches)), float(np.squeeze(ideal_s)))


@dataclass(frozen=True)
class Message:
    axis: str
    """The degree of the plan that sends it."""
    kind: str
    group_size: int
    crosses_nodes: bool
    message_bytes: float
    seconds: float

    @property
    def bus_bytes_per_s(self) -> float:
        n = self.group_size
        factor = {"all_reduce": 2.0 * (n - 1) / n, "send_recv": 1.0}.get(self.kind, (n - 1) / n)
        return self.message_bytes * factor / self.seconds


def list_messages(scenario: Scenario, calibration: Calibration | None = None) -> list[Message]:
    """Of a scenario with a plan; a degree of one sends nothing."""
    x, keys = encode([scenario])
    c = (calibration or shipped_calibration()).coefficients(keys)
    return [message for message in (*_model_parallel(x, c), *_data_parallel(x, c)) if message.group_size > 1]


def _model_parallel(x: Inputs, c: Coefficients) -> Iterator[Message]:
    one = np.ones(())
    hidden_bytes = x.tokens * x.hidden * x.value_bytes
    tensor = place(x, x.tp, one)
    yield _message("tp", "all_reduce", tensor, hidden_bytes, tensor_pair_s(x, c))
    ring, block_bytes = place(x, x.cp, x.tp), ring_block_bytes(x)
    yield _message("cp", "send_recv", ring, block_bytes, neighbour_s(x, c, ring, block_bytes))
    pipeline = place(x, x.pp, x.tp * x.cp * x.dp)
    stage_bytes = hidden_bytes / x.sequence_parallel_degree
    yield _message("pp", "send_recv", pipeline, stage_bytes, neighbour_s(x, c, pipeline, stage_bytes))
    if x.is_moe:
        experts = place(x, x.ep, x.etp)
        sent = x.tokens / x.tp * x.experts_per_token * x.hidden * x.value_bytes
        seconds = all_to_all_s(x, c, experts, sent, x.experts_per_token)
        yield _message("ep", "all_to_all", experts, sent, seconds)


def _data_parallel(x: Inputs, c: Coefficients) -> Iterator[Message]:
    dense, expert = layer_parameters(x, x.stages.moe_share)
    yield from _sharded(x, c, "dp", dense, x.dp * x.cp, x.tp, dense_shards(x))
    if x.is_moe:
        yield from _sharded(x, c, "dp of experts", expert, expert_ranks(x), x.ep * x.etp, expert_shards(x))


def _sharded(
    x: Inputs, c: Coefficients, axis: str, parameters: Array, ranks: Array, stride: Array, shards: Array
) -> Iterator[Message]:
    """A layer's parameters gathered (gradients scattered) over the shards, then reduced over the replicas."""
    layer_bytes, domain = parameters * x.value_bytes, slice_devices(x)
    group = place(x, shards, stride, domain)
    yield _message(axis, "all_gather", group, layer_bytes, gather_s(x, c, group, layer_bytes))
    replicas = place(x, ranks / shards, stride * shards, domain)
    left = layer_bytes / shards
    yield _message(axis, "all_reduce", replicas, left, all_reduce_s(x, c, replicas, left))


def _message(axis: str, kind: str, group: Group, message_bytes: Array, seconds: Array) -> Message:
    return Message(
        axis, kind, round(float(group.size)), float(group.outside) > 1.0, float(message_bytes), float(seconds)
    )


def messages_per_step(scenario: Scenario, message: Message) -> float:
    """How many such messages a rank of a middle stage takes part in, as `traffic.py` counts them: per layer
    and micro-batch for tensor, context and expert parallelism, per chunk and micro-batch for the pipeline."""
    plan, training = scenario.plan, scenario.training
    if plan is None:
        return 0.0
    x, _ = encode([scenario])
    micro_batches = training.global_batch_size / (plan.dp * plan.micro_batch_size)
    layers = scenario.model.num_hidden_layers / plan.pp
    passes = 3.0 if plan.recompute == "full" else 2.0
    counts = {
        "tp": 2.0 * passes * layers * micro_batches,
        "cp": 3.0 * (plan.cp - 1) * layers * micro_batches,
        "pp": 2.0 * (plan.vpp or 1) * micro_batches,
        "ep": 2.0 * passes * layers * float(x.stages.moe_share) * micro_batches,
    }
    if message.axis in counts:
        return counts[message.axis]
    if message.kind == "all_reduce":  # over the replicas, at the end of the step
        return layers
    per_micro_batch = {3: 3.0, 2: 1.0}.get(plan.zero_stage, 0.0)
    at_the_end = {3: 0.0, 2: 1.0}.get(plan.zero_stage, 2.0)
    return layers * (per_micro_batch * micro_batches + at_the_end)
