"""Matrix products and attention: hand-computed times, bounds of the roofline, and what may never happen."""

from dataclasses import replace

import pytest

from tests.unit.physics.scenes import (
    number,
    scene,
)
from tools.physics.kernels import accumulation_s, attention_s, gemm_s, head_share, linear_s


def test_a_product_that_fills_whole_waves_takes_flops_over_rate_plus_bytes_over_bandwidth() -> None:
    s = scene()
    c = replace(s.c, gemm_efficiency=number(0.5), gemm_depth_half=number(0.0))
    m, n, k = 128 * 132, 256 * 4, 4096  # 132 x 4 tiles on 132 multiprocessors
    arithmetic = 2 * m * n * k / (0.5 * 989.4e12)
    moved = (m * k + k * n + m * n) * 2 / 3.35e12
    given_s = gemm_s(s.x, c, number(m), number(n), number(k))
    assert float(given_s) == pytest.approx(arithmetic + moved, rel=1e-12)


def test_one_tile_more_than_a_wave_costs_part_of_another_wave() -> None:
    s = scene()
    x = replace(s.x, memory_bandwidth=number(1e30))
    k, n, m = number(4096.0), number(256.0), number(128.0 * 132)
    for weight in (0.0, 0.35, 1.0):
        c = replace(s.c, gemm_wave_weight=number(weight))
        ratio = float(gemm_s(x, c, m + 1, n, k)) / float(gemm_s(x, c, m, n, k))
        assert ratio == pytest.approx(1.0 + weight, rel=1e-3)


def test_backward_of_a_linear_layer_is_two_products() -> None:
    s = scene(gradient_dtype="fp32")
    forward, backward = linear_s(s.x, s.c, number(16896), number(16896), number(16896))
    added_s = 16896**2 * (2 * 4 - 2) / 3.35e12
    assert float(backward) == pytest.approx(2 * float(forward) + added_s, rel=1e-9)


def test_a_main_gradient_is_added_to_in_every_micro_batch_where_the_framework_keeps_one() -> None:
    kept, none = (
        accumulation_s(scene(zero_stage=3, framework=f, gradient_dtype="fp32").x, number(1e9))
        for f in ("megatron-core", "torchtitan")
    )
    assert float(kept) == pytest.approx(1e9 * 6 / 3.35e12)
    assert float(none) == 0.0


def test_frozen_weights_have_no_gradient_of_their_own() -> None:
    s = scene("llama-3.1-8b", lora={"rank": 16})
    forward, backward = linear_s(s.x, s.c, number(8192), number(8192), number(8192))
    assert float(backward) == pytest.approx(float(forward), rel=1e-9)


@pytest.mark.parametrize(
    ("device", "width"), [("a100-sxm-80gb", 32), ("h100-sxm-80gb", 64), ("b200", 128), ("b300", 64)]
)
def test_a_head_runs_at_half_rate_where_exponentials_take_as_long_as_products(
    device: str, width: int
) -> None:
    x = scene("llama-3.1-8b", device=device, devices=8).x
    assert float(head_share(x, number(width))) == pytest.approx(0.5, abs=0.01)


def test_a_systolic_array_pays_for_whole_tiles_of_weights() -> None:
    s = scene("llama-3.1-8b", device="tpu-v5p", devices=4, framework="maxtext", zero_stage=3)
    c = replace(s.c, gemm_depth_half=number(0.0))
    m, k = number(1e6), number(8192)
    times = [float(gemm_s(s.x, c, m, number(n), k)) for n in (129, 256)]
    moved = [(1e6 * 8192 + 8192 * n + 1e6 * n) * 2 / 2.765e12 for n in (129, 256)]
    assert times[0] - moved[0] == pytest.approx(times[1] - moved[1], rel=1e-9)


def test_causal_attention_takes_half_the_square_at_its_rate() -> None:
    s = scene(tp=4, cp=2, seq_len=8192, micro_batch_size=2)
    c = replace(s.c, attention_efficiency=number(0.5))
    x = replace(s.x, exponentials_per_s=number(1e30))
    pairs = 2 * 8192 / 2 * (64 / 4) * 8192 / 2  # queries x heads of the rank x keys seen on average
    forward, backward = attention_s(x, c)
    assert float(forward) == pytest.approx(4 * pairs * 128 / (0.5 * 989.4e12), rel=1e-12)
    assert float(backward) == pytest.approx(float(forward) * 2.5 / 0.85, rel=1e-12)


def test_attention_without_flash_computes_the_square_and_moves_the_scores() -> None:
    fused, unfused = scene("gpt-3-175b", tp=8), scene("gpt-3-175b", tp=8, flash=False)
    c = replace(fused.c, attention_score_passes=number(0.0))
    square = float(attention_s(unfused.x, c)[0])
    assert square == pytest.approx(2 * float(attention_s(fused.x, c)[0]), rel=1e-12)
    scores = 4096 * (96 / 8) * 4096
    passes = replace(c, attention_score_passes=number(5.0))
    moved = float(attention_s(unfused.x, passes)[0]) - square
    assert moved == pytest.approx(5 * scores * 2 / 3.35e12, rel=1e-9)
