"""Kernels and layers against what was measured: products, attention, the scan, a layer with recomputation."""

import pytest

from tests.unit.physics.scenes import number, scene
from tools.physics.kernels import attention_s, gemm_s, recurrence_s
from tools.physics.stage import layer_time

TERA = 1e12


def product_tflops(device: str, precision: str, m: int, n: int, k: int) -> float:
    s = scene("llama-3.1-8b", device=device, devices=8, batch=8, precision=precision)
    return 2.0 * m * n * k / float(gemm_s(s.x, s.c, number(m), number(n), number(k))) / TERA


@pytest.mark.parametrize(
    ("device", "shape", "best"),
    [
        ("a100-sxm-80gb", (1024, 10240, 5120), 271.2),
        ("h100-sxm-80gb", (2048, 2048, 13312), 794.5),
        ("gb200", (4096, 9728, 2048), 1822.0),
        ("mi300x", (10240, 15360, 8192), 668.4),
        ("mi355x", (12288, 8192, 8192), 1565.0),
    ],
)
def test_no_product_beats_the_best_that_was_ever_measured(
    device: str, shape: tuple[int, int, int], best: float
) -> None:
    """Bekman, Machine Learning Engineering@744d01e1, compute/accelerator/README.md, Maximum Achievable Matmul
    FLOPS in bf16, at the best of many shapes and with nothing beside it: a training step reaches three
    quarters to nine tenths of it. At the specified peak a product would be 1.15 to 1.95 times as fast."""
    assert 0.72 * best < product_tflops(device, "bf16", *shape) < 0.92 * best


@pytest.mark.parametrize(("device", "gain"), [("h100-sxm-80gb", 1402.6 / 794.5), ("b200", 3432.5 / 1745.0)])
def test_8_bit_products_gain_what_was_measured_and_not_the_specified_two(device: str, gain: float) -> None:
    """The same tables, fp8 over bf16: 1.77 and 1.97. Without a loss to scaling and power it would be 2."""
    narrow, wide = (product_tflops(device, precision, 8192, 8192, 8192) for precision in ("fp8", "bf16"))
    assert narrow / wide == pytest.approx(gain, rel=0.06)
    assert narrow / wide < 1.9


def attention_tflops(framework: str, zero_stage: int = 1) -> tuple[float, float]:
    """Forward and backward of causal attention, 16 heads of 128, 16,384 tokens."""
    model = {
        "num_hidden_layers": 1, "hidden_size": 2048, "intermediate_size": 4096, "num_attention_heads": 16,
        "num_key_value_heads": 16, "head_dim": 128, "vocab_size": 1000,
    }  # fmt: skip
    words = {"devices": 1, "batch": 1, "seq_len": 16384, "framework": framework, "zero_stage": zero_stage}
    s = scene(model, **words)
    forward_s, backward_s = attention_s(s.x, s.c)
    flops = 4.0 * 16384**2 * 128 * 16 / 2.0 / TERA
    return flops / float(forward_s), 2.5 * flops / float(backward_s)


def test_causal_attention_runs_as_fast_as_cudnn_s_on_an_h100() -> None:
    """FlashAttention-3, arXiv 2407.08608, figure 5: head size 128, causal, 16k tokens, TFLOP/s: cuDNN 539,
    FlashAttention-3 616. Counting the whole square would give 990, standard attention reaches 35."""
    assert attention_tflops("megatron-core")[0] == pytest.approx(539.0, rel=0.1)


def test_backward_attention_runs_at_87_percent_of_forward_s_rate() -> None:
    """Figures 5 and 6 of the same paper, head size 128, 16k tokens, no mask, TFLOP/s: 516 of 595 (cuDNN), 561
    of 648 (FlashAttention-3), 322 of 370 (FlashAttention-2), with 2.5 times the FLOPs. With twice, the rule
    of other layers, it would come out as 1.06."""
    forward, backward = attention_tflops("megatron-core")
    assert backward / forward == pytest.approx(0.87, abs=0.03)


def test_flash_attention_2_reaches_54_percent_of_its_successor_on_an_h100() -> None:
    """Figure 5 of the same paper: 335 of 616 TFLOP/s. Who calls it does not get the newer one."""
    old, new = attention_tflops("torchtitan", zero_stage=3)[0], attention_tflops("megatron-core")[0]
    assert old / new == pytest.approx(335 / 616, rel=0.03)


def test_the_scan_of_mamba_2_is_no_faster_than_its_best_kernel() -> None:
    """tile-ai/tilelang@be9c08f6, benchmark/mamba2/README.md: the chunk scan of mamba2-2.7b, tuned, on an
    H800: 135 TFLOP/s; the kernels of Triton, which frameworks call, take longer. At attention's rate, as it
    was, it would be 495, at that of products 740."""
    s = scene("mamba2", framework="other", devices=1, batch=1)
    rate = float(s.x.tokens * s.x.mixer_flops / recurrence_s(s.x)[0]) / TERA
    assert 0.4 * 135.4 < rate < 135.4


@pytest.mark.parametrize(
    ("recompute", "sequence_parallel", "measured_ms"),
    [
        ("none", False, 19.6),
        ("none", True, 19.0),
        ("full", False, 27.2),
        ("selective", False, 20.9),
        ("selective", True, 20.3),
    ],
)
def test_a_layer_of_the_22b_model_takes_its_measured_time(
    recompute: str, sequence_parallel: bool, measured_ms: float
) -> None:
    """Korthikanti et al., arXiv 2205.05198, table 4: forward and backward of one layer on 8 A100, with the 4
    sequences of 2,048 tokens of table 3. If recomputation did not send again, full would take 26.1 ms; with
    the norms on every rank sequence parallelism would gain nothing."""
    model = {
        "num_hidden_layers": 48, "hidden_size": 6144, "intermediate_size": 24576, "num_attention_heads": 64,
        "num_key_value_heads": 64, "vocab_size": 51200, "gated_mlp": False, "tie_word_embeddings": True,
    }  # fmt: skip
    words = {"tp": 8, "seq_len": 2048, "micro_batch_size": 4, "flash": False, "software_date": "2022-05"}
    plan = {"recompute": recompute, "sequence_parallel": sequence_parallel, "precision": "fp16"}
    s = scene(model, device="a100-sxm-80gb", devices=8, batch=4, **words, **plan)
    assert float(layer_time(s.x, s.c, s.x.is_moe).device) * 1e3 == pytest.approx(measured_ms, rel=0.04)
