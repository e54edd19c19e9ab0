"""Time of one kernel on one device: matrix multiplication and attention from the roofline.

Nothing here knows about parallelism: shapes are those that one rank sees.
"""

from tools.cost.arithmetic import ceil, clip, is_any, maximum, where
from tools.cost.constants import Coefficients
from tools.cost.inputs import Array, Inputs
from tools.cost.sizes import causal_keys

BACKWARD_ATTENTION_FLOPS = 2.5
"""FlashAttention-2 (arXiv 2307.08691, section 4): five matrix products backward against two forward."""
BACKWARD_ATTENTION_EFFICIENCY = 0.85
"""FlashAttention-2 and -3 (arXiv 2407.08608, figures 5 and 6): backward at about 85% of forward's rate."""


def gemm_s(x: Inputs, c: Coefficients, m: Array, n: Array, k: Array, low_precision: bool = True) -> Array:
    """One product (m,k)x(k,n): arithmetic at the shape's efficiency, plus operands and result moved."""
    rate = _gemm_rate(x, c) if low_precision else x.half_peak * c.gemm_efficiency * x.power_share
    padding, inner = _padding(x, c, m, n, k)
    depth = 1.0 + c.gemm_depth_half / maximum(inner, 1.0)
    moved_bytes = gemm_moved_bytes(x, m, n, k, low_precision)
    return 2.0 * m * n * k * padding * depth / rate + moved_bytes / x.memory_bandwidth


def gemm_moved_bytes(x: Inputs, m: Array, n: Array, k: Array, low_precision: bool = True) -> Array:
    """Both operands read and the result written, once."""
    element_bytes = x.gemm_bytes if low_precision else x.value_bytes
    return (m * k + k * n) * element_bytes + m * n * x.value_bytes


def _gemm_rate(x: Inputs, c: Coefficients) -> Array:
    """Sustained FLOP/s of large products in the run's precision: never less than in 16 bits, which a device
    without faster narrow products would use."""
    low = x.gemm_peak * where(x.gemm_bytes < 1.0, c.fp4_gain, c.fp8_gain)
    peak = where(x.gemm_bytes >= 2.0, x.gemm_peak, maximum(low, x.half_peak))
    return peak * c.gemm_efficiency * x.power_share


def _padding(x: Inputs, c: Coefficients, m: Array, n: Array, k: Array) -> tuple[Array, Array]:
    """Work done over work asked for, and the inner dimension as computed: a systolic array runs whole tiles
    of weights, other devices waves of tiles."""
    systolic = x.is_systolic > 0
    waves = 1.0 + c.gemm_wave_weight * (_wave_ratio(x, m, n) - 1.0)
    if not is_any(systolic):
        return waves, k
    inner = ceil(k / x.tile_n) * x.tile_n
    return where(systolic, _mxu_ratio(x, n, k), waves), where(systolic, inner, k)


def _wave_ratio(x: Inputs, m: Array, n: Array) -> Array:
    """Work after padding to tiles and to whole waves of tiles, over the work asked for (at most 4: small
    products get smaller tiles and split k)."""
    tiles = ceil(m / x.tile_m) * ceil(n / x.tile_n)
    waves = ceil(tiles / x.compute_units)
    padded = waves * x.compute_units * x.tile_m * x.tile_n
    return clip(padded / maximum(m * n, 1.0), 1.0, 4.0)


def _mxu_ratio(x: Inputs, n: Array, k: Array) -> Array:
    """A systolic array always computes whole tiles of weights."""
    padded = ceil(n / x.tile_n) * x.tile_n * ceil(k / x.tile_n) * x.tile_n
    return padded / maximum(n * k, 1.0)


def linear_s(
    x: Inputs, c: Coefficients, m: Array, n: Array, k: Array, low_precision: bool = True
) -> tuple[Array, Array]:
    """Forward and backward (input gradient, weight gradient) of a linear layer."""
    forward = gemm_s(x, c, m, n, k, low_precision)
    weights = gemm_s(x, c, n, k, m, low_precision) + accumulation_s(x, n * k)
    # frozen weights need no gradient of their own; that of their adapters is small
    backward = gemm_s(x, c, m, k, n, low_precision) + where(x.trained_share < 1.0, 0.0, weights)
    if not low_precision or not is_any(x.stored_bytes < x.value_bytes):
        return forward, backward
    opened_s = dequantization_s(x, n * k)
    return forward + opened_s, backward + opened_s


def dequantization_s(x: Inputs, parameters: Array) -> Array:
    """A quantized weight is read, and written in the run's precision, for each product that reads it: once
    forward and once backward (QLoRA; Dettmers et al., arXiv 2305.14314, section 3)."""
    moved_bytes = where(x.stored_bytes < x.value_bytes, x.stored_bytes + x.value_bytes, 0.0)
    return parameters * moved_bytes / x.memory_bandwidth


def accumulation_s(x: Inputs, parameters: Array) -> Array:
    """Adding a weight gradient to the main one, which is read and written in every micro-batch instead of
    written once in the run's precision (Megatron-LM, gradient accumulation fusion). FSDP keeps none."""
    moved_bytes = maximum(2.0 * x.gradient_bytes - x.value_bytes, 0.0)
    return parameters * moved_bytes / x.memory_bandwidth


def attention_s(x: Inputs, c: Coefficients) -> tuple[Array, Array]:
    """Forward and backward of the attention core of one layer for one micro-batch on one rank."""
    pairs = attention_pairs(x)
    flops = 2.0 * pairs * (x.qk_dim + x.v_dim)
    rate = (
        x.half_peak
        * c.attention_efficiency
        * x.attention_kernel
        * x.power_share
        * head_share(x, (x.qk_dim + x.v_dim) / 2.0)
    )
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


def recurrence_s(x: Inputs, c: Coefficients) -> tuple[Array, Array]:
    """Forward and backward of what a token mixer computes between its products: chunked kernels of small
    products, at the rate that attention reaches; backward computes the states again, as attention's does."""
    rate = x.half_peak * c.attention_efficiency * x.power_share
    forward = x.tokens / x.tp * x.mixer_flops / rate
    return forward, forward * BACKWARD_ATTENTION_FLOPS / BACKWARD_ATTENTION_EFFICIENCY


def attention_pairs(x: Inputs) -> Array:
    """Queries times the keys computed for each: without a fused causal kernel, the whole sequence."""
    return x.tokens * x.heads / x.tp * where(x.flash > 0, causal_keys(x), x.seq)
