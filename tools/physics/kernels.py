"""Time of one kernel on one device: matrix multiplication and attention from the roofline.

Nothing here knows about parallelism: shapes are those that one rank sees.
"""

import numpy as np

from tools.physics.arithmetic import ZERO, ceil, clip, is_any, maximum, minimum, where
from tools.physics.inputs import Array, Coefficients, Inputs
from tools.physics.sizes import causal_keys

BACKWARD_ATTENTION_FLOPS = 2.5
"""FlashAttention-2 (arXiv 2307.08691, section 4): five matrix products backward against two forward."""
SCAN_EFFICIENCY, SCAN_FLOPS_PER_UNIT = 0.10, 0.5e12
"""Share of the 16-bit peak that the chunked kernels of Mamba 2 reach (products of 64 to 256 rows in Triton),
and what one multiprocessor computes so: newer ones gain by instructions that these kernels do not use. Read
off runs/mb-nemotron3, so those rows do not judge it."""
WINDOW_BLOCK = 256.0
"""Queries and keys of the blocks at a window's edges: 128 each (FlashAttention-2 and -3); four times that on
TPUs (splash attention, block_q and block_kv of 512)."""
BACKWARD_ATTENTION_EFFICIENCY = 0.85
"""FlashAttention-2 and -3 (arXiv 2407.08608, figures 5 and 6): backward at about 85% of forward's rate."""


def gemm_s(x: Inputs, c: Coefficients, m: Array, n: Array, k: Array, low_precision: bool = True) -> Array:
    """One product (m,k)x(k,n): arithmetic at the shape's efficiency, plus operands and result moved.

    Large products of narrow operands run never slower than in 16 bits, which a device without faster narrow
    products would use."""
    peak = x.half_peak
    if low_precision:
        narrow = x.gemm_peak * where(x.gemm_bytes < 1.0, c.fp4_gain, c.fp8_gain)
        peak = where(x.gemm_bytes >= 2.0, x.gemm_peak, maximum(narrow, x.half_peak))
    padding, inner = _padding(x, c, m, n, k)
    depth = 1.0 + c.gemm_depth_half / maximum(inner, 1.0)
    arithmetic_s = 2.0 * m * n * k * padding * depth / (peak * c.gemm_efficiency * x.power_share)
    return arithmetic_s + gemm_moved_bytes(x, m, n, k, low_precision) / x.memory_bandwidth


def gemm_moved_bytes(x: Inputs, m: Array, n: Array, k: Array, low_precision: bool = True) -> Array:
    """Both operands read and the result written, once."""
    element_bytes = x.gemm_bytes if low_precision else x.value_bytes
    return (m * k + k * n) * element_bytes + m * n * x.value_bytes


def _padding(x: Inputs, c: Coefficients, m: Array, n: Array, k: Array) -> tuple[Array, Array]:
    """Work done over work asked for, and the inner dimension as computed. Other devices than systolic arrays
    compute whole waves of tiles of the result (at most 4 times the work: small products get smaller tiles and
    split k); a systolic array computes whole tiles of weights."""
    waves = ceil(ceil(m / x.tile_m) * ceil(n / x.tile_n) / x.compute_units)
    computed = waves * x.compute_units * x.tile_m * x.tile_n
    padding = 1.0 + c.gemm_wave_weight * (clip(computed / maximum(m * n, 1.0), 1.0, 4.0) - 1.0)
    systolic = x.is_systolic > 0
    if not is_any(systolic):
        return padding, k
    inner = ceil(k / x.tile_n) * x.tile_n
    tiles = ceil(n / x.tile_n) * x.tile_n * inner / maximum(n * k, 1.0)
    return where(systolic, tiles, padding), where(systolic, inner, k)


def linear_s(
    x: Inputs, c: Coefficients, m: Array, n: Array, k: Array, wide: Array = ZERO
) -> tuple[Array, Array]:
    """Forward and backward (input gradient, weight gradient) of a linear layer; a share `wide` of such layers
    is kept in 16 bits."""
    narrow = linear_of_s(x, c, m, n, k)
    if not is_any(wide):
        return narrow
    pairs = zip(narrow, linear_of_s(x, c, m, n, k, low_precision=False), strict=True)
    forward, backward = (few + (many - few) * wide for few, many in pairs)
    return forward, backward


def linear_of_s(
    x: Inputs, c: Coefficients, m: Array, n: Array, k: Array, low_precision: bool = True
) -> tuple[Array, Array]:
    """In the run's precision, or in 16 bits."""
    forward = gemm_s(x, c, m, n, k, low_precision)
    weights = gemm_s(x, c, n, k, m, low_precision) + accumulation_s(x, n * k)
    # frozen weights need no gradient of their own; that of their adapters is small
    backward = gemm_s(x, c, m, k, n, low_precision) + where(x.trained_share < 1.0, 0.0, weights)
    is_quantized = x.stored_bytes < x.value_bytes
    if not low_precision or not is_any(is_quantized):
        return forward, backward
    # a quantized weight is read, and written in the run's precision, for each product that reads it
    # (QLoRA; Dettmers et al., arXiv 2305.14314, section 3)
    dequantize_s = n * k * where(is_quantized, x.stored_bytes + x.value_bytes, 0.0) / x.memory_bandwidth
    return forward + dequantize_s, backward + dequantize_s


def accumulation_s(x: Inputs, parameters: Array) -> Array:
    """Adding a weight gradient to the main one, which is read and written in every micro-batch instead of
    written once in the run's precision (Megatron-LM, gradient accumulation fusion). FSDP keeps none."""
    return parameters * maximum(2.0 * x.gradient_bytes - x.value_bytes, 0.0) / x.memory_bandwidth


def attention_s(x: Inputs, c: Coefficients) -> tuple[Array, Array]:
    """Forward and backward of the attention core of one layer for one micro-batch on one rank."""
    pairs, width = attention_pairs(x), x.qk_dim + x.v_dim
    flops = 2.0 * pairs * width
    peak = x.half_peak * c.attention_efficiency * x.attention_kernel * x.power_share
    rate = peak * head_share(x, width / 2.0)
    forward = (flops + x.tokens / x.tp * x.index_flops) / rate
    backward = forward * BACKWARD_ATTENTION_FLOPS / BACKWARD_ATTENTION_EFFICIENCY
    scores_s = where(x.flash > 0, 0.0, pairs * x.value_bytes * c.attention_score_passes / x.memory_bandwidth)
    return forward + scores_s, where(x.flash > 0, backward, 2.0 * forward) + scores_s


def head_share(x: Inputs, width: Array) -> Array:
    """Share of a wide head's rate. A score takes 2 (d_qk + d_v) FLOPs and one exponential, so products and
    exponentials cost the same at width = peak / (4 * exponentials per second) (FlashAttention-3, arXiv
    2407.08608, section 3.1). A systolic array computes whole tiles of the head instead."""
    half_rate_width = x.half_peak / (4.0 * x.exponentials_per_s)
    tiled = width / (ceil(width / x.tile_n) * x.tile_n)
    return where(x.is_systolic > 0, tiled, width / (width + half_rate_width))


def recurrence_s(x: Inputs) -> tuple[Array, Array]:
    """Forward and backward of what a token mixer computes between its products: chunked kernels of small
    products; backward computes the states again and then the gradients of five products."""
    units = where(x.is_systolic > 0, np.inf, SCAN_FLOPS_PER_UNIT * x.compute_units)
    rate = minimum(x.half_peak * SCAN_EFFICIENCY, units) * x.power_share
    forward = x.tokens / x.tp * x.mixer_flops / rate
    return forward, forward * (BACKWARD_ATTENTION_FLOPS + 1.0)


def attention_pairs(x: Inputs) -> Array:
    """Queries times the keys computed for each: without a fused causal kernel, the whole sequence."""
    # a window's edges lie inside blocks, which are computed whole
    window = minimum(x.window, x.document_tokens)
    blocks = minimum(
        WINDOW_BLOCK * where(x.is_systolic > 0, 4.0, 1.0), x.document_tokens / 2.0 - window / 2.0
    )
    edges = x.window_share * maximum(blocks, 0.0)
    return x.tokens * x.heads / x.tp * where(x.flash > 0, causal_keys(x) + edges, x.seq)
