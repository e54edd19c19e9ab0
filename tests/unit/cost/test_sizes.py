"""Parameter and FLOP counts against what the models' authors publish, and how layers lie over stages."""

from dataclasses import replace

import pytest

from tests.unit.cost.scenes import number, scene
from tools.cost.sizes import (
    dense_shards,
    expert_ranks,
    expert_shards,
    layer_parameters,
    model_flops_per_token,
    total_parameters,
    vocabulary_parameters,
)

MOE_PLAN = {"devices": 64, "ep": 8, "tp": 2, "pp": 2}


@pytest.mark.parametrize(
    ("model", "published"),
    [
        ("llama-3.1-8b", 8.03e9),  # Llama 3 model card
        ("llama-3.1-70b", 70.6e9),
        ("mixtral-8x7b", 46.7e9),  # arXiv 2401.04088
        ("deepseek-v3", 671e9),  # arXiv 2412.19437
        ("gpt-oss-120b", 116.8e9),  # gpt-oss model card
        ("gpt-3-175b", 174.6e9),  # arXiv 2005.14165
    ],
)
def test_total_parameters_are_the_published_ones(model: str, published: float) -> None:
    assert float(total_parameters(scene(model).x)) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("model", "published"), [("deepseek-v3", 37e9), ("mixtral-8x7b", 12.9e9), ("gpt-oss-120b", 5.1e9)]
)
def test_a_token_meets_the_published_active_parameters(model: str, published: float) -> None:
    x = replace(scene(model).x, seq=number(1.0))
    active = float(model_flops_per_token(x)) / 6.0
    embedding = float(x.vocab * x.hidden) if model != "gpt-oss-120b" else 0.0
    assert active + embedding == pytest.approx(published, rel=0.02)


def test_model_flops_of_llama_70b_are_six_a_parameter_and_causal_attention() -> None:
    x = scene(seq_len=8192).x
    matrices = 80 * (8192 * (64 + 2 * 8) * 128 + 64 * 128 * 8192 + 3 * 8192 * 28672) + 128256 * 8192
    scores = 3 * 80 * 4 * 64 * 128 * (8192 / 2)
    assert float(model_flops_per_token(x)) == pytest.approx(6 * matrices + scores, rel=1e-12)


def test_recomputation_and_the_plan_do_not_change_the_model_s_flops() -> None:
    one = model_flops_per_token(scene(tp=8, pp=4, recompute="full").x)
    assert one == model_flops_per_token(scene(tp=2, pp=2, recompute="none").x)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "mixtral-8x7b", "deepseek-v3", "gpt-3-175b"])
def test_without_parallelism_a_rank_holds_the_whole_model(model: str) -> None:
    x = scene(model, devices=1).x
    dense, expert = layer_parameters(x, x.stages.moe_share)
    held = x.layers * (dense + expert) + (2.0 - x.tied) * vocabulary_parameters(x)
    assert float(held) == pytest.approx(float(total_parameters(x)), rel=1e-9)


def test_ranks_of_a_stage_hold_every_expert_the_same_number_of_times() -> None:
    x = scene("mixtral-8x7b", **MOE_PLAN).x
    assert float(x.ep * x.etp * expert_ranks(x)) == float(x.dp * x.cp * x.tp)


def test_zero_divides_experts_over_no_more_ranks_than_hold_them() -> None:
    x = scene("mixtral-8x7b", **MOE_PLAN).x
    assert float(expert_shards(x)) == float(expert_ranks(x)) == 4.0
    assert float(dense_shards(x)) == float(x.dp * x.cp) == 16.0


def test_even_layers_lie_evenly_and_the_head_s_stage_gets_the_remainder() -> None:
    even = scene(pp=4).x.stages
    assert (float(even.inner), float(even.last)) == (20.0, 20.0)
    uneven = scene(model="deepseek-v3", pp=8, ep=8).x.stages
    assert (float(uneven.inner), float(uneven.last)) == (8.0, 5.0)


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_stages_hold_all_layers(pp: int) -> None:
    x = scene("deepseek-v3", devices=128, pp=pp).x
    lay = x.stages
    assert float(lay.inner * (pp - 1) + lay.last) == float(x.layers)
