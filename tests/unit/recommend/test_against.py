"""A job beside a measured run: prices of single settings, and what users asked about published numbers."""

import math
from typing import Any

import pytest

from tools.errors import InputError
from tools.model.predict import predict
from tools.model.published import published_runs
from tools.model.runs import Measured, Run
from tools.recommend.against import NEAR, RunComparison, choose_run, compare_with_run
from tools.scenario import Scenario, parse_scenario

LLAMA_70B = {
    "name": "70B",
    "num_hidden_layers": 80,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
LLAMA_8B = LLAMA_70B | {
    "name": "Llama 3 8B",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
}
QWEN_30B = {
    "name": "Qwen3-30B-A3B",
    "num_hidden_layers": 48,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
MPT_BY_MISTAKE = {
    "name": "MPT",
    "num_hidden_layers": 12,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "vocab_size": 50368,
    "gated_mlp": False,
    "tie_word_embeddings": True,
}


def job(
    model: dict[str, Any],
    devices: int,
    plan: dict[str, Any],
    framework: str,
    seq_len: int,
    batch: int,
    **more: str | bool,
) -> Scenario:
    training = {"framework": framework, "seq_len": seq_len, "global_batch_size": batch, "precision": "bf16"}
    degrees = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "micro_batch_size": 1}
    return parse_scenario(
        {
            "model": model,
            "cluster": {"device": "h100-sxm-80gb", "num_devices": devices},
            "training": training | {"flash_attention": True} | more,
            "plan": degrees | plan,
        }
    )


def measured(scenario: Scenario, tflops: float) -> float:
    """The step at which people quote this speed."""
    (predicted,) = predict([scenario])
    return predicted.step_time_s * predicted.model_tflops_per_device / tflops


def causes(comparison: RunComparison) -> list[str]:
    """The fields named in the first three lines."""
    fields = {one.field for setting in comparison.settings for one in setting.differences}
    lines = comparison.summary[:3]
    return [field for line in lines for field in fields if line.startswith((f"{field} ", f"{field}:"))]


def test_a_full_recompute_explains_the_70b_that_is_slower_than_published() -> None:
    """NVIDIA/Megatron-LM issue 1031: 296.5 TFLOP/s with TP8 PP8 and full recompute; published: 420."""
    plan = {"tp": 8, "pp": 8, "dp": 2, "dp_shard": 2, "zero_stage": 1, "recompute": "full"}
    ours = job(LLAMA_70B, 128, plan, "megatron-core", 4096, 256)
    run = choose_run(ours, published_runs(), NEAR)
    assert run.scenario.model.num_hidden_layers == 80
    found = compare_with_run(ours, run, measured(ours, 296.5))
    assert found.tflops == pytest.approx(296.5, rel=1e-6)
    assert causes(found)[0] == "recompute"


def test_the_micro_batch_explains_the_mixture_of_experts_that_is_slower_than_the_blog() -> None:
    """NVIDIA/Megatron-LM issue 2762: 120 TFLOP/s; AutoModel's 277 ran micro-batches of 4 on one node."""
    plan = {"ep": 8, "dp": 32, "dp_shard": 32, "zero_stage": 1}
    ours = job(QWEN_30B, 32, plan, "megatron-core", 4096, 256, moe_dispatcher="alltoall")
    plan = {"ep": 8, "dp": 8, "dp_shard": 8, "zero_stage": 3, "micro_batch_size": 4}
    blog = job(QWEN_30B, 8, plan, "automodel", 4096, 512)
    run = Run(scenario=blog, measured=Measured(step_time_s=measured(blog, 277)), id="blog")
    found = compare_with_run(ours, choose_run(ours, [*published_runs(), run], "blog"), measured(ours, 120))
    assert found.ratio == pytest.approx(277 / 120, rel=1e-6)
    assert "micro_batch_size" in causes(found)
    assert any("routing" in line for line in found.summary[:3]), "most of it is not a setting's"
    near = compare_with_run(ours, choose_run(ours, published_runs(), NEAR), measured(ours, 120))
    assert near.run != "blog"
    assert "moe_dispatcher" in causes(near)


def test_sequence_length_and_recompute_explain_another_memory_than_the_benchmark() -> None:
    """pytorch/torchtitan issue 1344: seq_len 32768 and full recompute beside the float8 table of 8192."""
    plan = {"dp": 8, "dp_shard": 8, "zero_stage": 3, "recompute": "full"}
    ours = job(LLAMA_8B, 8, plan, "torchtitan", 32768, 8, precision="fp8", compile=True)
    found = compare_with_run(ours, choose_run(ours, published_runs(), NEAR))
    assert {"seq_len", "recompute"} <= {*causes(found)}
    recompute = next(one for one in found.settings if one.differences[0].field == "recompute")
    assert recompute.memory_gib > 10


def test_the_wrong_model_is_named_as_the_cause() -> None:
    """mosaicml/llm-foundry issue 1706: 13.5% MFU instead of 46%, d_model 768 in the file of a 7B."""
    plan = {"dp": 8, "dp_shard": 8, "zero_stage": 3, "micro_batch_size": 6, "recompute": "none"}
    ours = job(MPT_BY_MISTAKE, 8, plan, "torch-fsdp", 2048, 48)
    run = choose_run(ours, published_runs(), "llmfoundry-039")
    found = compare_with_run(ours, run, measured(ours, 0.1353 * 989.4))
    assert causes(found) == ["model"]
    assert len(found.settings) == 1


def test_prices_interaction_and_remainder_multiply_to_the_gap() -> None:
    plan = {"tp": 8, "pp": 4, "dp": 4, "dp_shard": 4, "zero_stage": 1, "recompute": "full"}
    ours = job(LLAMA_70B, 128, plan, "megatron-core", 8192, 256)
    found = compare_with_run(ours, choose_run(ours, published_runs(), NEAR), 40.0)
    product = math.prod(one.ratio for one in found.settings) * found.interaction * found.remainder
    assert product == pytest.approx(found.ratio, rel=1e-9)


def test_settings_that_are_legal_only_together_are_priced_together() -> None:
    """Three data-parallel ranks cannot share a batch of 2, nor two a batch of 3."""
    ours = job(LLAMA_70B, 16, {"tp": 8, "dp": 2, "dp_shard": 2, "zero_stage": 1}, "megatron-core", 4096, 2)
    plan = {"tp": 8, "dp": 3, "dp_shard": 3, "zero_stage": 1}
    theirs = job(LLAMA_70B, 24, plan, "megatron-core", 4096, 3)
    run = Run(scenario=theirs, measured=Measured(step_time_s=10.0), id="theirs")
    (joint,) = compare_with_run(ours, run).settings
    assert {one.field for one in joint.differences} == {"num_devices", "global_batch_size"}


def test_an_unknown_run_is_refused_by_name() -> None:
    ours = job(
        LLAMA_70B, 64, {"tp": 8, "pp": 8, "dp": 1, "dp_shard": 1, "zero_stage": 1}, "megatron-core", 8192, 128
    )
    with pytest.raises(InputError, match=r"against: got 'dgxc2503-13'.*did you mean dgxc2503-"):
        choose_run(ours, published_runs(), "dgxc2503-13")
