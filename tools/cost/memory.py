"""Peak memory of the fullest rank: weights, gradients, optimizer state, activations in flight, buffers.

Activation bytes per token and layer follow Korthikanti et al. (arXiv 2205.05198, section 4.1), counted by
what is kept for backward so that gated, grouped-query and expert layers are covered; interleaved in-
flight counts follow Narayanan et al. (arXiv 2104.04473, section 2.2). What each framework keeps is data
in `kb_seed`.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np

import kb_seed
from tools.cost.arithmetic import is_any, maximum, minimum, number, where
from tools.cost.inputs import Array, Columns, Inputs
from tools.cost.sizes import (
    dense_shards,
    dense_share,
    expert_shards,
    layer_parameters,
    vocabulary_parameters,
)


@dataclass(frozen=True)
class MemorySettings(Columns):
    """Bytes per parameter, copies of an activation, and the fixed reserve; see calibration/memory.toml."""

    parameter_bytes: Array
    gradient_bytes: Array
    optimizer_bytes: Array
    gradients_sharded_from: Array
    hidden_kept: Array
    hidden_cast_kept: Array
    routed_kept: Array
    logits_bytes: Array
    none_kept: Array
    selective_kept: Array
    input_kept: Array
    residual_split: Array
    gathered_inputs_kept: Array
    gathered_layers: Array
    buffer_copies: Array
    fragmentation_ratio: Array
    runtime_bytes: Array


Entry = dict[str, float | dict[str, float]]


@cache
def _table() -> dict[str, Entry]:
    return tomllib.loads(kb_seed.folder("calibration").joinpath("memory.toml").read_text())


def memory_settings(stacks: Sequence[str], precisions: Sequence[str]) -> MemorySettings:
    """One row per stack and precision; a single one gives scalars."""
    if len(stacks) == 1:
        return _settings(stacks[0], *precisions)
    rows = [_settings(stack, precision) for stack, precision in zip(stacks, precisions, strict=True)]
    return MemorySettings(*(np.array([getattr(row, f.name) for row in rows]) for f in fields(MemorySettings)))


PROPORTIONAL = (
    *("parameter_bytes", "gradient_bytes", "optimizer_bytes"),
    *("fragmentation_ratio", "runtime_bytes"),
)
"""Each part of the peak is proportional to one of these."""


def scaled(settings: MemorySettings, factor: Array) -> MemorySettings:
    """Under which every part of the peak is `factor` times as large."""
    return replace(settings, **{name: getattr(settings, name) * factor for name in PROPORTIONAL})


@cache
def _settings(stack: str, precision: str) -> MemorySettings:
    table = _table()
    entry = {**table["default"], **table.get(stack, {})}
    values = {k: v.get(precision, v["default"]) if isinstance(v, dict) else v for k, v in entry.items()}
    return MemorySettings(**{name: number(value) for name, value in values.items()})


GIB = 2.0**30
UNFUSED_FRAGMENTATION = 1.25
"""Reserved over allocated memory before fused attention: no expandable segments, and scores of many sizes
(PyTorch documentation, CUDA memory management)."""


@dataclass(frozen=True)
class Memory(Columns):
    """Bytes on the fullest rank."""

    parameters: Array
    gradients: Array
    optimizer: Array
    activations: Array
    buffers: Array
    runtime: Array

    @property
    def total(self) -> Array:
        return sum((getattr(self, f.name) for f in fields(self)), number(0.0))


@dataclass(frozen=True)
class StageBytes(Columns):
    """On a rank of the first stage and of the last."""

    first: Array
    last: Array

    def __add__(self, other: "StageBytes") -> "StageBytes":
        return StageBytes(self.first + other.first, self.last + other.last)

    @property
    def peak(self) -> Array:
        return maximum(self.first, self.last)


@dataclass(frozen=True)
class Activity(Columns):
    """What does not depend on how data parallelism is sharded, on the first stage and on the last."""

    first_activations: Array
    first_buffers: Array
    last_activations: Array
    last_buffers: Array

    @property
    def total(self) -> StageBytes:
        return StageBytes(
            self.first_activations + self.first_buffers, self.last_activations + self.last_buffers
        )


@dataclass(frozen=True)
class State(Columns):
    """What does not depend on micro-batches: what ZeRO leaves on a rank, and the runtime."""

    parameters: StageBytes
    gradients: StageBytes
    optimizer: StageBytes
    gathered: Array
    runtime: Array

    @property
    def total(self) -> StageBytes:
        on_both = self.gathered + self.runtime
        return self.parameters + self.gradients + self.optimizer + StageBytes(on_both, on_both)


@dataclass(frozen=True)
class LayerActivity(Columns):
    """Of one micro-batch: what a layer keeps for backward, what one at work needs, logits, buffers."""

    kept: Array
    working: Array
    logits: Array
    exchanged: Array


def memory_bytes(x: Inputs, s: MemorySettings) -> Memory:
    """The worse of the first stage and the last."""
    state, active = x.once_per_sharding(state_bytes, s), activity_bytes(x, s)
    both = state.total + active.total
    worse_first = both.first >= both.last
    parameters, gradients, optimizer = (
        where(worse_first, part.first, part.last)
        for part in (state.parameters, state.gradients, state.optimizer)
    )
    return Memory(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        activations=where(worse_first, active.first_activations, active.last_activations),
        buffers=where(worse_first, active.first_buffers, active.last_buffers) + state.gathered,
        runtime=state.runtime,
    )


def activity_bytes(x: Inputs, s: MemorySettings) -> Activity:
    """Activations in flight, most on the first stage, and working buffers, with the logits on the last."""
    lay, layer = x.stages, x.once_per_layer(layer_activity, s)
    # Megatron-LM, get_pp_rank_microbatches: the last stage warms up (vpp - 1) * pp chunks and works on one
    warmed_up = minimum(((x.vpp - 1.0) * x.pp + 1.0) / x.vpp, x.micro_batches)
    last_flight = where((x.is_gpipe > 0) & (x.pp > 1), x.micro_batches, warmed_up)
    reserved = s.fragmentation_ratio * where(x.flash > 0, 1.0, UNFUSED_FRAGMENTATION)
    return Activity(
        first_activations=lay.inner * layer.kept * _in_flight(x) * reserved,
        first_buffers=(maximum(where(x.pp > 1, 0.0, layer.logits), layer.working) + layer.exchanged)
        * reserved,
        last_activations=lay.last * layer.kept * last_flight * reserved,
        last_buffers=(maximum(layer.logits, layer.working) + layer.exchanged) * reserved,
    )


def layer_activity(x: Inputs, s: MemorySettings) -> LayerActivity:
    """Depends on the plan by LAYER_FIELDS alone."""
    everything = _layer_bytes(x, s)
    return LayerActivity(
        kept=_kept_bytes(x, s, everything),
        working=where(x.recompute >= 1, everything, 0.0),
        logits=x.tokens * x.vocab / x.tp * s.logits_bytes,
        exchanged=_communication_buffers(x, s),
    )


def state_bytes(x: Inputs, s: MemorySettings) -> State:
    """Depends on the plan by SHARDING_FIELDS alone."""
    lay = x.stages
    dense, expert = layer_parameters(x, lay.moe_share)
    gathered = where(x.zero >= 3, _gathered(x, s, dense + expert), 0.0) * s.fragmentation_ratio
    matrices = vocabulary_parameters(x) * where(x.pp > 1, 1.0, 2.0 - x.tied)
    first = _state(x, s, dense * lay.inner, expert * lay.inner, matrices)
    last = _state(x, s, dense * lay.last, expert * lay.last, matrices)
    parameters, gradients, optimizer = map(StageBytes, first, last)
    return State(parameters, gradients, optimizer, gathered, np.asarray(s.runtime_bytes))


def stage_memory(x: Inputs, s: MemorySettings) -> list[tuple[float, float]]:
    """Of the first stage, one in between and the last: bytes held throughout a step, and the activations of
    one micro-batch. Of a single plan."""
    a, lay = activity_bytes(x, s), x.stages
    dense, expert = layer_parameters(x, lay.moe_share)
    gathered = where(x.zero >= 3, _gathered(x, s, dense + expert), 0.0) * s.fragmentation_ratio
    matrices = vocabulary_parameters(x) * where(x.pp > 1, 1.0, 2.0 - x.tied)
    reserved = s.fragmentation_ratio * where(x.flash > 0, 1.0, UNFUSED_FRAGMENTATION)
    kept = _kept_bytes(x, s, _layer_bytes(x, s)) * reserved
    parts = (
        (lay.inner, matrices, a.first_buffers),
        (lay.inner, number(0.0), a.first_buffers),
        (lay.last, matrices, a.last_buffers),
    )
    return [
        (
            float(
                sum(_state(x, s, dense * layers, expert * layers, more), buffers + gathered + s.runtime_bytes)
            ),
            float(kept * layers),
        )
        for layers, more, buffers in parts
    ]


def _state(
    x: Inputs, s: MemorySettings, dense: Array, expert: Array, matrices: Array
) -> tuple[Array, Array, Array]:
    """Parameters, gradients and optimizer state under ZeRO (Rajbhandari et al., arXiv 1910.02054); embedding
    and output matrix are never quantized."""
    dense = dense + matrices
    sharded = dense / dense_shards(x) + expert / expert_shards(x)
    whole = dense + expert
    parameters = where(x.zero >= 3, sharded, whole) * s.parameter_bytes
    if is_any(x.stored_bytes < x.value_bytes):
        kept = where(x.zero >= 3, matrices / dense_shards(x), matrices) * s.parameter_bytes
        layers = parameters - kept
        stored = layers * (x.stored_bytes / s.parameter_bytes + x.trained_share) + kept
        parameters = where(x.stored_bytes < x.value_bytes, stored, parameters)
    gradients = where(x.zero >= s.gradients_sharded_from, sharded, whole) * s.gradient_bytes
    optimizer = where(x.offloads_optimizer > 0, 0.0, sharded * s.optimizer_bytes)
    return parameters, gradients * x.trained_share, optimizer * x.trained_share


def _in_flight(x: Inputs) -> Array:
    """Micro-batches whose activations the first stage holds, as multiples of a whole stage."""
    depth = where(x.vpp > 1, x.pp * (1.0 + (x.pp - 1.0) / (x.pp * x.vpp)), x.pp)
    held = where(x.is_gpipe > 0, x.micro_batches, minimum(depth, x.micro_batches))
    return where(x.pp > 1, held, 1.0)


def _kept_bytes(x: Inputs, s: MemorySettings, everything: Array) -> Array:
    """Kept for backward by one layer and micro-batch, by recomputation, of `everything` that there is."""
    inputs_only = x.tokens * x.hidden * x.value_bytes / _residual_shards(x, s)
    kept = inputs_only * s.input_kept + (everything - inputs_only) * s.selective_kept
    selective = where(x.flash > 0, kept, everything - _score_bytes(x))
    if is_any(x.repeats_stated):
        stated = maximum(everything - _repeated_bytes(x, s), inputs_only)
        selective = where(x.repeats_stated > 0, stated, selective)
    share = minimum(x.recomputed_layers / x.stages.inner, 1.0)
    full = inputs_only * share + everything * s.none_kept * (1.0 - share)
    return where(x.recompute <= 0, everything * s.none_kept, where(x.recompute < 2, selective, full))


def _repeated_bytes(x: Inputs, s: MemorySettings) -> Array:
    """What recomputing the stated modules saves: their inner values, and outputs that only products read."""
    wide, narrow, moe_share = x.value_bytes, minimum(x.value_bytes, x.gemm_bytes), x.stages.moe_share
    per_width = x.up_matrices * wide + narrow
    dense, shared = dense_share(x, moe_share) * x.ffn, moe_share * x.shared_ffn
    tokens_routed = moe_share * x.experts_per_token / x.tp
    norms = s.hidden_cast_kept * narrow * x.hidden / _residual_shards(x, s)
    latent = (x.heads * x.qk_dim + x.kv_heads * (x.qk_dim + x.v_dim)) * wide / x.tp * x.attention_share
    repeats_shared = maximum(x.repeats_shared, x.repeats_experts)
    return x.tokens * (
        x.repeats_norm * norms
        + (x.repeats_mlp * dense + repeats_shared * shared) / x.tp * per_width
        + x.repeats_experts * tokens_routed * per_width * x.moe_ffn
        + (1.0 - x.repeats_experts) * x.repeats_activation * tokens_routed * narrow * x.moe_ffn
        + x.repeats_latent * where(x.kv_lora > 0, latent, 0.0)
    ) + x.repeats_core * _score_bytes(x)


def _layer_bytes(x: Inputs, s: MemorySettings) -> Array:
    """All that one layer keeps for one micro-batch; inputs of products in the products' precision."""
    wide, narrow, moe_share = x.value_bytes, minimum(x.value_bytes, x.gemm_bytes), x.stages.moe_share
    hidden = (s.hidden_kept * wide + s.hidden_cast_kept * narrow) * x.hidden / _residual_shards(x, s)
    qkv = x.heads * x.qk_dim + x.kv_heads * (x.qk_dim + x.v_dim)
    attention = (qkv * wide + x.heads * x.v_dim * (wide + narrow)) / x.tp * x.attention_share
    mixer = (x.mixer_in * wide + x.mixer_out * (wide + narrow)) / x.tp * x.mixer_share
    per_width = x.up_matrices * wide + narrow
    dense_ffn = (dense_share(x, moe_share) * x.ffn + moe_share * x.shared_ffn) / x.tp * per_width
    # inputs of the two column-parallel products, kept as gathered over the tensor ranks
    gathered_inputs = where(x.sequence_parallel > 0, s.gathered_inputs_kept * narrow * x.hidden, 0.0)
    routed = (
        moe_share
        * x.experts_per_token
        / x.tp
        * (per_width * x.moe_ffn + s.routed_kept * narrow * x.moe_hidden)
    )
    mixing = attention + mixer
    return x.tokens * (hidden + gathered_inputs + mixing + dense_ffn + routed) + _score_bytes(x)


def _residual_shards(x: Inputs, s: MemorySettings) -> Array:
    """Over how many ranks the hidden state between the products is divided."""
    return where(s.residual_split > 0, x.tp, x.sequence_parallel_degree)


def _score_bytes(x: Inputs) -> Array:
    """Softmax input, output and dropout mask without FlashAttention: 5 bytes per score."""
    return where(x.flash > 0, 0.0, 5.0 * x.tokens * x.heads / x.tp * x.seq) * x.attention_share


def _gathered(x: Inputs, s: MemorySettings, layer: Array) -> Array:
    """ZeRO-3: whole layers gathered ahead of use, and the embedding or output matrix."""
    return layer * s.gathered_layers * x.stored_bytes + vocabulary_parameters(x) * x.value_bytes


def _communication_buffers(x: Inputs, s: MemorySettings) -> Array:
    """Receive buffers of tensor, context and expert exchanges: a few hidden states."""
    hidden_state = x.tokens * x.hidden * x.value_bytes
    routed = where(x.ep > 1, x.experts_per_token / x.tp, 0.0) * hidden_state
    return s.buffer_copies * (hidden_state * where(x.tp > 1, 1.0, 0.0) + routed)
