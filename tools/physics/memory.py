"""Peak memory of the fullest rank: weights, gradients, optimizer state, activations in flight, buffers.

Activation bytes per token and layer follow Korthikanti et al. (arXiv 2205.05198, section 4.1), counted by
what is kept for backward so that gated, grouped-query and expert layers are covered; interleaved in-
flight counts follow Narayanan et al. (arXiv 2104.04473, section 2.2). What each framework keeps is data
in `kb_seed`.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tools.physics.arithmetic import ZERO, Mask, is_any, maximum, minimum, where
from tools.physics.inputs import LAYER_FIELDS, SHARDING_FIELDS, Array, Columns, Inputs
from tools.physics.sizes import (
    dense_shards,
    dense_share,
    expert_shards,
    layer_parameters,
    vocabulary_parameters,
)

GIB = 2.0**30
UNFUSED_FRAGMENTATION = 1.25
"""Reserved over allocated memory before fused attention: no expandable segments, scores of many sizes, blocks
that were needed once (PyTorch documentation, CUDA memory management)."""
DROPOUT_BYTES = 2.0
"""Masks of two dropouts per value of the hidden state, which models had before fused attention (Korthikanti
et al., arXiv 2205.05198, section 4.1)."""
LAYERS_IN_TRANSIT = 2.0
"""Offloaded layers that are on the device at least: one computes while the other moves (Transformer Engine,
double buffering of CPU offload)."""
NEVER_RESHARDED = 1.0
"""The code of `reshard_after_forward = false` in columns of plans."""
Stage = Literal["fullest", "first", "last"]
MemoryKind = Literal["device", "reserved", "allocated"]
"""What is in use on the device, what the framework's allocator holds of it, what that has given out."""


@dataclass(frozen=True)
class MemorySettings(Columns):
    """Bytes per parameter, copies of an activation, and the fixed reserve; see calibration/memory.toml."""

    parameter_bytes: Array
    state_ratio: Array
    gradients_sharded_from: Array
    bucket_bytes: Array
    hidden_kept: Array
    hidden_cast_kept: Array
    routed_kept: Array
    logits_bytes: Array
    compiled_logits_bytes: Array
    split_logits_bytes: Array
    none_kept: Array
    compiled_kept: Array
    selective_kept: Array
    selective_routed_ratio: Array
    input_kept: Array
    residual_split: Array
    gathered_inputs_kept: Array
    gathered_layers: Array
    gathered_gradients: Array
    keeps_gathered_in_pipelines: Array
    buffer_copies: Array
    fragmentation_ratio: Array
    runtime_bytes: Array
    outside_bytes: Array


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
        return sum(self.parts, ZERO)


@dataclass(frozen=True)
class StageBytes(Columns):
    """On a rank of the first stage and of the last."""

    first: Array
    last: Array

    @property
    def peak(self) -> Array:
        return maximum(self.first, self.last)


@dataclass(frozen=True)
class Activity(Columns):
    """What does not depend on how data parallelism is sharded."""

    activations: StageBytes
    buffers: StageBytes

    @property
    def total(self) -> StageBytes:
        return self.activations + self.buffers


@dataclass(frozen=True)
class ModelState(Columns):
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
    """Bytes of one micro-batch: what a layer keeps for backward, what one at work needs, logits, buffers."""

    kept: Array
    working: Array
    logits: Array
    exchanged: Array


def memory_bytes(x: Inputs, s: MemorySettings, stage: Stage = "fullest") -> Memory:
    """What the fuller of first and last stage holds, or a rank on the stage that is asked for."""
    state, active = x.once_per(SHARDING_FIELDS, state_bytes, s), activity_bytes(x, s)
    both = state.total + active.total
    is_first = both.first >= both.last if stage == "fullest" else np.asarray(stage == "first")
    stages = (state.parameters, state.gradients, state.optimizer, active.activations, active.buffers)
    parameters, gradients, optimizer, activations, buffers = (
        where(is_first, part.first, part.last) for part in stages
    )
    return Memory(parameters, gradients, optimizer, activations, buffers + state.gathered, state.runtime)


def read_bytes(x: Inputs, s: MemorySettings, kind: MemoryKind, stage: Stage = "fullest") -> Array:
    """What a log of this kind shows of `memory_bytes`: part of the runtime lies outside of the framework's
    allocator, and what is fragmented was never given out."""
    memory = memory_bytes(x, s, stage)
    if kind == "device":
        return memory.total
    state = memory.parameters + memory.gradients + memory.optimizer
    moving = memory.activations + memory.buffers
    if kind == "allocated":
        state, moving = state / _unfused(x), moving / _reserved(x, s)
    return state + moving + memory.runtime - s.outside_bytes


def activity_bytes(x: Inputs, s: MemorySettings) -> Activity:
    """Activations in flight, most on the first stage, and working buffers, with the logits on the last."""
    lay, layer, reserved = x.stages, x.once_per(LAYER_FIELDS, layer_activity, s), _reserved(x, s)
    # micro-batches whose activations the first stage holds, as multiples of a whole stage
    is_gpipe, m = x.has_schedule("gpipe") & (x.pp > 1), x.micro_batches
    depth = where(x.vpp > 1, x.pp * (1.0 + (x.pp - 1.0) / (x.pp * x.vpp)), x.pp)
    first_flight = where(is_gpipe, m, where(x.pp > 1, minimum(depth, m), 1.0))
    # Megatron-LM, get_pp_rank_microbatches: the last stage warms up (vpp - 1) * pp chunks and works on one
    warmed_up = minimum(((x.vpp - 1.0) * x.pp + 1.0) / x.vpp, m)
    last_flight = where(is_gpipe, m, warmed_up)
    first_logits = where(x.pp > 1, 0.0, layer.logits)
    return Activity(
        activations=StageBytes(
            layer.kept * _layers_kept(x, _first_layers(x), first_flight) * reserved,
            layer.kept * _layers_kept(x, lay.last, last_flight) * reserved,
        ),
        buffers=StageBytes(
            (maximum(first_logits, layer.working) + layer.exchanged) * reserved,
            (maximum(layer.logits, layer.working) + layer.exchanged) * reserved,
        ),
    )


def _first_layers(x: Inputs) -> Array:
    """Layers of the first stage. Where stages are balanced by cost, blocks go to one until it has more than
    its share of all layers and the head."""
    if not is_any(x.head_layers):
        return x.stages.inner
    filled = minimum(np.floor((x.layers + x.head_layers) / x.pp) + 1.0, x.layers)
    return where((x.head_layers > 0) & (x.pp > 1), filled, x.stages.inner)


def _layers_kept(x: Inputs, layers: Array, flight: Array) -> Array:
    """Layers times micro-batches whose activations are on the device."""
    if not is_any(x.offloaded_share):
        return layers * flight
    whole = layers * flight
    return maximum(whole * (1.0 - x.offloaded_share), minimum(whole, LAYERS_IN_TRANSIT))


def _reserved(x: Inputs, s: MemorySettings) -> Array:
    """Reserved over allocated memory, of what comes and goes."""
    return s.fragmentation_ratio * _unfused(x)


def _unfused(x: Inputs) -> Array:
    """The same of what stays."""
    return where(x.flash > 0, 1.0, UNFUSED_FRAGMENTATION)


def layer_activity(x: Inputs, s: MemorySettings) -> LayerActivity:
    """Depends on the plan by LAYER_FIELDS alone."""
    everything = _layer_bytes(x, s)
    # receive buffers of tensor, context and expert exchanges: a few hidden states
    hidden_state = x.tokens * x.hidden * x.value_bytes
    routed = where(x.ep > 1, x.experts_per_token / x.tp, 0.0) * hidden_state * x.imbalance
    if is_any(x.gathers_tokens):  # every token of the group, and as many results
        gathered = where(x.ep > 1, x.ep * x.etp / x.tp, 0.0) * hidden_state
        routed = where(x.gathers_tokens > 0, routed + gathered, routed)
    per_logit = where(x.is_compiled > 0, s.compiled_logits_bytes, s.logits_bytes)
    per_logit = where(x.tp > 1, s.split_logits_bytes, per_logit)
    return LayerActivity(
        kept=_kept_bytes(x, s, everything),
        working=where(x.recompute >= 1, everything, 0.0),
        logits=x.tokens * x.vocab / x.tp * per_logit,
        exchanged=s.buffer_copies * (hidden_state * where(x.tp > 1, 1.0, 0.0) + routed),
    )


def state_bytes(x: Inputs, s: MemorySettings) -> ModelState:
    """Depends on the plan by SHARDING_FIELDS alone."""
    lay, vocabulary = x.stages, vocabulary_parameters(x)
    dense, expert = layer_parameters(x, lay.moe_share)
    matrices = vocabulary * where(x.pp > 1, 1.0, 2.0 - x.tied)
    first = _state(x, s, dense * lay.inner_held, expert * lay.inner_held, matrices)
    last = _state(x, s, dense * lay.last_held, expert * lay.last_held, matrices)
    # Weights gathered ahead of use: some layers, or all until backward; the embedding or output matrix.
    # Beside them a layer's gradient, and its copy that is reduced.
    is_open = x.reshard_after_forward < NEVER_RESHARDED
    keeps = (x.reshard_after_forward == NEVER_RESHARDED) | (x.zero_stage < 3)
    keeps = keeps | (is_open & (x.pp > 1) & (s.keeps_gathered_in_pipelines > 0))
    layers = where(keeps, lay.inner_held, s.gathered_layers)
    reduced = s.gathered_gradients * (x.value_bytes + x.reduced_bytes) * x.trained_share
    gathered = (dense + expert) * (layers * x.stored_bytes + reduced)
    gathered = gathered + vocabulary * (x.value_bytes + reduced)
    gathered = where(_shards_weights(x, s), gathered, 0.0) * _reserved(x, s)
    parameters, gradients, optimizer = map(StageBytes, first, last)
    return ModelState(parameters, gradients, optimizer, gathered, np.asarray(s.runtime_bytes))


def _shards_weights(x: Inputs, s: MemorySettings) -> Mask:
    """Whether a rank holds its shard of the weights: ZeRO 3; ZeRO 2 too where these are the masters (FSDP),
    whose 16-bit copies then stay gathered."""
    is_so: Mask = x.zero_stage >= where(s.parameter_bytes > x.value_bytes, 2.0, 3.0)
    return is_so


def stage_memory(x: Inputs, s: MemorySettings) -> list[tuple[float, float]]:
    """One plan's first stage, one in between and the last: bytes held throughout a step, and the activations
    of one micro-batch."""
    state, buffers, lay = state_bytes(x, s), activity_bytes(x, s).buffers, x.stages
    dense, expert = layer_parameters(x, lay.moe_share)
    inner = _state(x, s, dense * lay.inner_held, expert * lay.inner_held, ZERO)
    between = sum(inner, state.gathered + state.runtime)
    kept, held = layer_activity(x, s).kept * _reserved(x, s), state.total
    return [
        (float(held.first + buffers.first), float(kept * _first_layers(x))),
        (float(between + buffers.first), float(kept * lay.inner)),
        (float(held.last + buffers.last), float(kept * lay.last)),
    ]


def _state(
    x: Inputs, s: MemorySettings, dense: Array, expert: Array, matrices: Array
) -> tuple[Array, Array, Array]:
    """Parameters, gradients and optimizer state under ZeRO (Rajbhandari et al., arXiv 1910.02054); embedding
    and output matrix are never quantized."""
    dense, is_sharded = dense + matrices, _shards_weights(x, s)
    sharded = dense / dense_shards(x) + expert / expert_shards(x)
    whole = dense + expert
    parameters = where(is_sharded, sharded, whole) * (s.parameter_bytes * _unfused(x))
    if is_any(x.stored_bytes < x.value_bytes):
        kept = where(is_sharded, matrices / dense_shards(x), matrices) * s.parameter_bytes
        layers = parameters - kept
        stored = layers * (x.stored_bytes / s.parameter_bytes + x.trained_share) + kept
        parameters = where(x.stored_bytes < x.value_bytes, stored, parameters)
    trained = s.state_ratio * x.trained_share * _unfused(x)
    is_split = x.zero_stage >= s.gradients_sharded_from
    held = x.held_gradient_bytes
    if is_any(s.bucket_bytes):
        held = held + where((x.zero_stage < 1) & (x.dp * x.cp > 1), s.bucket_bytes, 0.0)
    gradients = where(is_split, sharded, whole) * (held * trained)
    optimizer = where(x.offloads_optimizer > 0, 0.0, sharded * (x.held_optimizer_bytes * trained))
    return parameters, gradients, optimizer


def _kept_bytes(x: Inputs, s: MemorySettings, everything: Array) -> Array:
    """Kept for backward by one layer and micro-batch, by recomputation, of `everything` that there is."""
    inputs_only = x.tokens * x.hidden * x.value_bytes / _residual_shards(x, s)
    unsaved = (1.0 - s.selective_routed_ratio) * x.tokens * _routed_bytes(x, s)
    kept = inputs_only * s.input_kept + (everything - inputs_only - unsaved) * s.selective_kept
    selective = where(x.flash > 0, kept, everything - _score_bytes(x))
    if is_any(x.recompute_modules):
        stated = maximum(everything - _repeated_bytes(x, s), inputs_only)
        selective = where(x.recompute_modules > 0, stated, selective)
    share, none = x.full_share, everything * where(x.is_compiled > 0, s.compiled_kept, s.none_kept)
    full = inputs_only * share + none * (1.0 - share)
    return x.by_recompute(none, selective, full)


def _repeated_bytes(x: Inputs, s: MemorySettings) -> Array:
    """What recomputing the stated modules saves: their inner values, and outputs that only products read."""
    wide, narrow, moe_share = x.value_bytes, _product_bytes(x), x.stages.moe_share
    per_width = _width_bytes(x)
    dense, shared = dense_share(x, moe_share) * x.ffn, moe_share * x.shared_ffn
    tokens_routed = moe_share * x.experts_per_token / x.tp * x.imbalance
    norms = s.hidden_cast_kept * narrow * _trained_inputs(x) * x.hidden / _residual_shards(x, s)
    latent = (x.heads * x.qk_dim + x.kv_heads * (x.qk_dim + x.v_dim)) * wide / x.tp * x.attention_share
    repeats_shared = maximum(x.repeats("shared_experts"), x.repeats("moe"))
    return x.tokens * (
        x.repeats("layernorm") * norms
        + (x.repeats("mlp") * dense + repeats_shared * shared) / x.tp * per_width
        + x.repeats("moe") * tokens_routed * per_width * x.moe_ffn
        + (1.0 - x.repeats("moe")) * x.repeats("moe_act") * tokens_routed * narrow * x.trains_mlp * x.moe_ffn
        + x.repeats("mla_up_proj") * where(x.kv_lora > 0, latent, 0.0)
    ) + x.repeats("core_attn") * _score_bytes(x)


def _layer_bytes(x: Inputs, s: MemorySettings) -> Array:
    """All that one layer keeps for one micro-batch; inputs of products in the products' precision, and of
    products with frozen weights none."""
    wide, narrow, moe_share = x.value_bytes, _product_bytes(x), x.stages.moe_share
    casts = s.hidden_cast_kept * narrow * _trained_inputs(x)
    dropout = where(x.flash > 0, 0.0, DROPOUT_BYTES)
    hidden = (s.hidden_kept * wide + casts + dropout) * x.hidden / _residual_shards(x, s)
    qkv = x.heads * x.qk_dim + x.kv_heads * (x.qk_dim + x.v_dim)
    # the output of attention is the projection's input too, unless that is cast
    cast = where(narrow < wide, narrow * x.trains_attention, 0.0)
    attention = (qkv * wide + x.heads * x.v_dim * (wide + cast)) / x.tp * x.attention_share
    mixer = (x.mixer_in * wide + x.mixer_out * (wide + narrow)) / x.tp * x.mixer_share
    per_width = _width_bytes(x)
    dense_ffn = (dense_share(x, moe_share) * x.ffn + moe_share * x.shared_ffn) / x.tp * per_width
    # inputs of the two column-parallel products, kept as gathered over the tensor ranks
    gathered = s.gathered_inputs_kept * narrow * _trained_inputs(x) * x.hidden
    gathered_inputs = where(x.sequence_parallel > 0, gathered, 0.0)
    mixing = attention + mixer
    inner = hidden + gathered_inputs + mixing + dense_ffn + _routed_bytes(x, s)
    return x.tokens * inner + _score_bytes(x)


def _routed_bytes(x: Inputs, s: MemorySettings) -> Array:
    """Kept per token by the routed experts of an average layer."""
    per_copy = _width_bytes(x) * x.moe_ffn + s.routed_kept * _product_bytes(x) * x.trains_mlp * x.moe_hidden
    return x.stages.moe_share * x.experts_per_token / x.tp * x.imbalance * per_copy


def _product_bytes(x: Inputs) -> Array:
    """What a value takes that is kept as the input of a product."""
    return minimum(x.value_bytes, x.gemm_bytes)


def _width_bytes(x: Inputs) -> Array:
    """Kept per intermediate value of a feed-forward part: inputs of the activation, and its product."""
    return x.up_matrices * x.value_bytes + _product_bytes(x) * x.trains_mlp


def _trained_inputs(x: Inputs) -> Array:
    """Share of the layer's two inputs of products that backward needs for a weight's gradient."""
    return (x.trains_attention + x.trains_mlp) / 2.0


def _residual_shards(x: Inputs, s: MemorySettings) -> Array:
    """Over how many ranks the hidden state between the products is divided."""
    return where(s.residual_split > 0, x.tp, x.sequence_parallel_degree)


def _score_bytes(x: Inputs) -> Array:
    """Softmax input, output and dropout mask without FlashAttention: 5 bytes per score."""
    return where(x.flash > 0, 0.0, 5.0 * x.tokens * x.heads / x.tp * x.seq) * x.attention_share
