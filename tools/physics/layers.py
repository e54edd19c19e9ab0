"""What one micro-batch costs one rank: a dense layer, a mixture-of-experts layer, the head with its loss.

Each cost is split into arithmetic and memory-bound seconds, forward and backward.
"""

from dataclasses import dataclass

from tools.physics.arithmetic import ZERO, is_any, maximum, where
from tools.physics.inputs import Array, Coefficients, Columns, Inputs
from tools.physics.kernels import attention_s, linear_of_s, linear_s, recurrence_s

LOSS_PASSES = 3.0
"""Over the fp32 logits, each way: log-softmax without fusion."""
FUSED_LOSS_PASSES = (1.0, 2.0)
"""Forward one read, with the maximum and the sum kept as it goes (Milakov and Gimelshein, arXiv 1805.02867);
backward one read and one write of the gradient."""
COMPILED_TRAFFIC = 0.75
"""Elementwise traffic of a compiled block over that of an eager one with fused norms (assumption)."""
MIXER_PASSES = 6.0
"""Over what a token mixer projects, read or written: copies, convolution, gate, norm (read off
runs/mb-nemotron3)."""
GATHERED_PASSES = 2.0
"""Zeros and sums of the gathering dispatcher, each written once (Megatron-Core, token_dispatcher.py)."""
CAST_BYTES = 4.0
"""Per value that is cast to 8 or 4 bits: one read, two writes (Transformer Engine, cast and transpose)."""
PERMUTATION_PASSES = 4.0
"""Two reads and two writes of each routed token (Megatron-Core MoE, permute and unpermute)."""


@dataclass(frozen=True)
class Work(Columns):
    """Seconds on one rank for one micro-batch."""

    forward: Array
    backward: Array
    forward_elementwise: Array
    backward_elementwise: Array
    last: Array = ZERO
    """The part of `forward` that is the product at the end of the block."""


def attention_block(x: Inputs, c: Coefficients) -> tuple[Work, Array]:
    """Projections, attention core and the memory-bound work around them; and the core's forward alone."""
    m, core_f, core_b = x.tokens, *attention_s(x, c)
    forward, backward = core_f, core_b
    parts = projections(x)
    for (n, k), wide in zip(parts, (x.wide_qkv,) * (len(parts) - 1) + (x.wide_proj,), strict=True):
        if is_any(n):
            f, b = linear_s(x, c, m, n, k, wide)
            forward = forward + where(n > 0, f, 0.0) * x.projection_ratio
            backward = backward + where(n > 0, b, 0.0) * x.projection_ratio
    hidden = x.hidden / x.sequence_parallel_degree
    qkv = (x.heads * (x.qk_dim + x.v_dim) + x.kv_heads * (x.qk_dim + x.v_dim)) / x.tp
    # norm, residual and rotary embedding: read and write of the hidden state and of q, k
    elements = m * (5.0 * hidden + 2.0 * qkv)
    return _with_traffic(x, c, forward, backward, elements, m * (hidden + qkv)), core_f


def mixer_block(x: Inputs, c: Coefficients) -> Work:
    """A token mixer that is not attention: products in and out, and the recurrence in chunks between them."""
    m, hidden = x.tokens, x.hidden / x.sequence_parallel_degree
    in_f, in_b = linear_s(x, c, m, x.mixer_in / x.tp, x.hidden, x.wide_mixer_in)
    out_f, out_b = linear_s(x, c, m, x.hidden, x.mixer_out / x.tp, x.wide_mixer_out)
    core_f, core_b = recurrence_s(x)
    # the projection is cut up, convolved and gated; states of the chunks, gate and norm follow
    elements = m * (5.0 * hidden + MIXER_PASSES * (x.mixer_in + x.mixer_out) / x.tp)
    cast = m * (hidden + x.mixer_out / x.tp)
    return _with_traffic(x, c, in_f + out_f + core_f, in_b + out_b + core_b, elements, cast)


def mixing_block(x: Inputs, c: Coefficients) -> tuple[Work, Array]:
    """Token mixing of an average layer, and the forward of its attention core alone."""
    attention, core_forward = attention_block(x, c)
    work = attention * x.attention_share
    if is_any(x.mixer_share):
        work = work + mixer_block(x, c) * x.mixer_share
    return work, core_forward * x.attention_share


def projections(x: Inputs) -> tuple[tuple[Array, Array], ...]:
    """(n, k) of each projection on one rank; n = 0 where the model has no such projection."""
    latent = x.kv_lora > 0
    q_width, o_width = x.heads * x.qk_dim, x.heads * x.v_dim
    kv_width = x.kv_heads * (x.qk_dim + x.v_dim)
    if not is_any(latent):
        return ((q_width + kv_width) / x.tp, x.hidden), (x.hidden, o_width / x.tp)
    nope = x.qk_dim - x.rope_dim
    q_in = where(x.q_lora > 0, x.q_lora, x.hidden)
    return (
        (where(latent, x.q_lora, ZERO), x.hidden),
        (where(latent, x.kv_lora + x.rope_dim, ZERO), x.hidden),
        (where(latent, q_width, q_width + kv_width) / x.tp, where(latent, q_in, x.hidden)),
        (where(latent, x.heads * (nope + x.v_dim), ZERO) / x.tp, maximum(x.kv_lora, 1.0)),
        (x.hidden, o_width / x.tp),
    )


def latent_up_s(x: Inputs, c: Coefficients) -> Array:
    """Forward of the projections from the latents of MLA to the heads."""
    if not is_any(x.kv_lora):
        return ZERO
    queries, keys = projections(x)[2:4]
    up = linear_s(x, c, x.tokens, *queries)[0] + linear_s(x, c, x.tokens, *keys)[0]
    return where(x.kv_lora > 0, up, 0.0) * x.projection_ratio * x.attention_share


def mlp_block(x: Inputs, c: Coefficients, width: Array, wide: Array) -> Work:
    """A dense feed-forward part of `width` intermediate elements, in a share `wide` of layers in 16 bits."""
    m, local, hidden = x.tokens, width / x.tp, x.hidden / x.sequence_parallel_degree
    up_f, up_b = linear_s(x, c, m, local * x.up_matrices, x.hidden, wide)
    down_f, down_b = linear_s(x, c, m, x.hidden, local, wide)
    elements = m * (5.0 * hidden + (x.up_matrices + 1.0) * local)
    return _with_traffic(x, c, up_f + down_f, up_b + down_b, elements, m * (hidden + local), last=down_f)


def expert_block(x: Inputs, c: Coefficients) -> Work:
    """Router in 16 bits, token permutation, routed experts (grouped GEMM), shared experts of one layer."""
    held, rows, width = routed(x)
    up_f, up_b = linear_s(x, c, rows / held, width * x.up_matrices, x.moe_hidden, x.wide_experts)
    down_f, down_b = linear_s(x, c, rows / held, x.moe_hidden, width, x.wide_experts)
    scale = held / grouped_ratio(x, c)
    forward, backward = (up_f + down_f) * scale, (up_b + down_b) * scale
    tokens = x.tokens / x.sequence_parallel_degree
    router_f, router_b = linear_of_s(x, c, tokens, x.experts, x.hidden, low_precision=False)
    forward, backward = forward + router_f, backward + router_b
    is_latent = x.moe_hidden < x.hidden
    if is_any(is_latent):  # products that bring tokens to the experts' narrower width and back
        in_f, in_b = linear_s(x, c, x.tokens, x.moe_hidden / x.tp, x.hidden, x.wide_latent)
        out_f, out_b = linear_s(x, c, x.tokens, x.hidden, x.moe_hidden / x.tp, x.wide_latent)
        forward = forward + where(is_latent, in_f + out_f, 0.0)
        backward = backward + where(is_latent, in_b + out_b, 0.0)
    elements = (
        rows * x.moe_hidden * PERMUTATION_PASSES
        + rows * (x.up_matrices + 1.0) * width
        + tokens * 5.0 * x.hidden
    )
    if is_any(x.gathers_tokens):  # its results are added up at the size of all gathered tokens
        group = x.ep * x.etp
        gathered = x.tokens / x.tp * group * x.moe_hidden * GATHERED_PASSES
        elements = elements + where((x.gathers_tokens > 0) & (group > 1), gathered, 0.0)
    cast = rows * (x.moe_hidden + width)
    work = _with_traffic(x, c, forward, backward, elements, cast, last=down_f * scale)
    if not is_any(x.shared_ffn):
        return work
    return work + mlp_block(x, c, x.shared_ffn, x.wide_shared) * where(x.shared_ffn > 0, 1.0, 0.0)


def routed(x: Inputs) -> tuple[Array, Array, Array]:
    """Experts that a rank holds, rows they get together, and intermediate elements of each on this rank."""
    # a capacity pads each expert's rows; without one every token is computed where it is sent
    rows = x.tokens * x.experts_per_token / x.tp * x.etp * where(x.capacity > 0, x.capacity, x.imbalance)
    return maximum(x.experts / x.ep, 1.0), rows, x.moe_ffn / x.etp


def grouped_ratio(x: Inputs, c: Coefficients) -> Array:
    """Efficiency of grouped products over that of a dense one of the same shape."""
    return c.grouped_gemm_ratio * where(x.gemm_bytes < 2.0, c.grouped_low_precision_ratio, 1.0)


def head_block(x: Inputs, c: Coefficients) -> Work:
    """The output projection, in 16 bits under fp8 and fp4 unless a recipe has it in 8, and the cross-entropy
    over the vocabulary."""
    forward, backward = linear_of_s(x, c, x.tokens, x.vocab / x.tp, x.hidden, low_precision=False)
    if is_any(x.wide_head < 1):
        forward, backward = linear_s(x, c, x.tokens, x.vocab / x.tp, x.hidden, x.wide_head)
    logits_bytes = x.tokens * x.vocab / x.tp * 4.0
    loss_forward, loss_backward = (
        logits_bytes * where(x.fuses_loss > 0, fused, LOSS_PASSES) / x.memory_bandwidth
        for fused in FUSED_LOSS_PASSES
    )
    return Work(forward, backward, loss_forward, loss_backward)


def _with_traffic(
    x: Inputs,
    c: Coefficients,
    forward: Array,
    backward: Array,
    elements: Array,
    cast: Array,
    last: Array = ZERO,
) -> Work:
    """Adds the memory-bound seconds: `elements` moved forward and twice that backward, and the casts that
    low-precision operands need."""
    fused = where(x.is_compiled > 0, COMPILED_TRAFFIC, 1.0)
    base_s = elements * x.value_bytes * c.elementwise_traffic * fused / x.memory_bandwidth
    casts_s = where(x.gemm_bytes < 2.0, cast * CAST_BYTES / x.memory_bandwidth, 0.0)
    return Work(forward, backward, base_s + casts_s, 2.0 * base_s + casts_s, last)
