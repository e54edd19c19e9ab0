"""The matrix products and messages of one plan as the cost model sees them, for figures and tables.

Products: forward, one micro-batch, one rank, as in `layers.py` and `kernels.py`. Messages: one of each
kind, as in `traffic.py`, before any overlap. Nothing here adds to a prediction. Bus bandwidth as in nccl-
tests (doc/PERFORMANCE.md).
"""

from dataclasses import dataclass

import numpy as np

from tools.model.calibration import Calibration, shipped_calibration
from tools.physics.arithmetic import ONE, ZERO
from tools.physics.collectives import (
    Group,
    all_to_all_s,
    crossing_bytes,
    gather_s,
    neighbour_s,
    network_bytes,
    place,
    slice_devices,
)
from tools.physics.encode import encode
from tools.physics.inputs import Array
from tools.physics.kernels import attention_pairs, attention_s, gemm_moved_bytes, gemm_s
from tools.physics.layers import grouped_ratio, projections, routed
from tools.physics.sizes import causal_keys, dense_shards, expert_ranks, expert_shards, layer_parameters
from tools.physics.traffic import ring_block_bytes, sharded_messages, tensor_pair_s
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
    """The scenario must have a plan."""
    x, keys = encode([scenario])
    c = (calibration or shipped_calibration()).coefficients(keys)

    def product(name: str, m: Array, n: Array, k: Array, low_precision: bool = True) -> Operation:
        moved_bytes = gemm_moved_bytes(x, m, n, k, low_precision)
        seconds = gemm_s(x, c, m, n, k, low_precision)
        shape = f"{float(m):,.0f} × {float(n):,.0f} × {float(k):,.0f}"
        return Operation(name, shape, float(2.0 * m * n * k), float(moved_bytes), float(seconds))

    found = []
    if x.attention_share > 0:
        *inputs, output = ((n, k) for n, k in projections(x) if n > 0)
        found += [product("query, key, value", x.tokens, n, k) for n, k in inputs]
        found.append(product("attention output", x.tokens, *output))
        width = x.qk_dim + x.v_dim
        moved_bytes = x.tokens * (x.heads + x.kv_heads) / x.tp * width * x.value_bytes
        shape = f"{x.seq:g} tokens, {x.heads / x.tp:g} heads of {x.v_dim:g}"
        flops, seconds = 2.0 * attention_pairs(x) * width, attention_s(x, c)[0]
        found.append(Operation("attention core", shape, float(flops), float(moved_bytes), float(seconds)))
    if x.mixer_share > 0:
        found.append(product("token mixer in", x.tokens, x.mixer_in / x.tp, x.hidden))
        found.append(product("token mixer out", x.tokens, x.hidden, x.mixer_out / x.tp))
    if x.is_moe:
        held, rows, width = routed(x)
        tokens = x.tokens / x.sequence_parallel_degree
        found.append(product("expert router", tokens, x.experts, x.hidden, low_precision=False))
        if x.moe_hidden < x.hidden:
            found.append(product("experts' latent in", x.tokens, x.moe_hidden / x.tp, x.hidden))
            found.append(product("experts' latent out", x.tokens, x.hidden, x.moe_hidden / x.tp))
        for expert in (
            product("experts up", rows / held, width * x.up_matrices, x.moe_hidden),
            product("experts down", rows / held, x.moe_hidden, width),
        ):
            all_s = expert.seconds * held / grouped_ratio(x, c)
            figures = (float(figure) for figure in (expert.flops * held, expert.moved_bytes * held, all_s))
            found.append(Operation(expert.name, f"{held:g} of {expert.shape}", *figures))
    dense = x.ffn if x.moe_layers < x.layers * (1.0 + x.dense_offset) else ZERO
    for name, width in (("feed-forward", dense), ("shared experts", x.shared_ffn)):
        if width > 0:
            found.append(product(f"{name} up", x.tokens, width / x.tp * x.up_matrices, x.hidden))
            found.append(product(f"{name} down", x.tokens, x.hidden, width / x.tp))
    return [*found, product("output head", x.tokens, x.vocab / x.tp, x.hidden, low_precision=False)]


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
    outside_bytes: float = 0.0
    """What a rank sends out of its domain, over the network."""

    @property
    def sent_bytes(self) -> float:
        """What a rank sends, over both kinds of link."""
        n = self.group_size
        factor = {"all_reduce": 2.0 * (n - 1) / n, "send_recv": 1.0}.get(self.kind, (n - 1) / n)
        return self.message_bytes * factor

    @property
    def inside_bytes(self) -> float:
        return self.sent_bytes - self.outside_bytes

    @property
    def bus_bytes_per_s(self) -> float:
        return self.sent_bytes / self.seconds


def list_messages(scenario: Scenario, calibration: Calibration | None = None) -> list[Message]:
    """The scenario must have a plan; a degree of one sends nothing."""
    x, keys = encode([scenario])
    c = (calibration or shipped_calibration()).coefficients(keys)
    hidden_bytes, found = x.tokens * x.hidden * x.value_bytes, []

    def add(
        axis: str, kind: str, group: Group, message_bytes: Array, seconds: Array, outside_bytes: Array
    ) -> None:
        size, crosses = round(float(group.size)), float(group.outside) > 1.0
        if size > 1:
            figures = (float(figure) for figure in (message_bytes, seconds, outside_bytes))
            found.append(Message(axis, kind, size, crosses, *figures))

    def add_gather(axis: str, kind: str, group: Group, message_bytes: Array, seconds: Array) -> None:
        """An all-reduce gathers twice: once to scatter sums, once to spread them."""
        times = 2.0 if kind == "all_reduce" else 1.0
        add(axis, kind, group, message_bytes, seconds, times * network_bytes(x, group, message_bytes))

    def add_neighbour(axis: str, group: Group, message_bytes: Array) -> None:
        outside_bytes = message_bytes * (group.outside > 1.0)
        add(axis, "send_recv", group, message_bytes, neighbour_s(x, c, group, message_bytes), outside_bytes)

    add_gather("tp", "all_reduce", place(x, x.tp, ONE), hidden_bytes, tensor_pair_s(x, c))
    add_neighbour("cp", place(x, x.cp, x.tp), ring_block_bytes(x))
    add_neighbour("pp", place(x, x.pp, x.tp * x.cp * x.dp), hidden_bytes / x.sequence_parallel_degree)
    dense, expert = layer_parameters(x, x.stages.moe_share)
    sharded = [("dp", dense, x.dp * x.cp, x.tp, dense_shards(x))]
    if x.is_moe:
        group = place(x, x.ep, x.etp)
        sent = x.tokens / x.tp * x.experts_per_token * x.hidden * x.value_bytes
        seconds = all_to_all_s(x, c, group, sent, x.experts_per_token)
        if float(x.gathers_tokens) > 0:
            add_gather("ep", "all_gather", group, sent / x.experts_per_token * x.ep, seconds)
        else:
            outside_bytes = crossing_bytes(x, group, sent, x.experts_per_token)
            add("ep", "all_to_all", group, sent, seconds, outside_bytes)
        sharded.append(("dp of experts", expert, expert_ranks(x), x.ep * x.etp, expert_shards(x)))
    for axis, parameters, ranks, stride, shards in sharded:
        # a layer's parameters gathered (gradients scattered) over the shards, then reduced over the replicas
        layer_bytes, domain = parameters * x.value_bytes, slice_devices(x)
        group = place(x, shards, stride, domain)
        add_gather(axis, "all_gather", group, layer_bytes, gather_s(x, c, group, layer_bytes))
        replicas, left = place(x, ranks / shards, stride * shards, domain), layer_bytes / shards
        add_gather(axis, "all_reduce", replicas, left, 2.0 * gather_s(x, c, replicas, left))
    return found


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
    per_micro_batch, at_the_end = (float(sum(counts)) for counts in sharded_messages(x))
    return layers * (per_micro_batch * micro_batches + at_the_end)
