"""Parameter and FLOP counts against what the models' authors publish, and how layers lie over stages."""

from dataclasses import replace

import pytest

from tests.unit.physics.scenes import MODELS, number, scene
from tools.physics.sizes import (
    count_parameters,
    dense_shards,
    expert_ranks,
    expert_shards,
    layer_parameters,
    model_flops_per_token,
    total_parameters,
    vocabulary_parameters,
)

EVERY_MODEL = pytest.mark.parametrize("model", MODELS)
MOE_PLAN = {"devices": 64, "ep": 8, "tp": 2, "pp": 2}


@pytest.mark.parametrize(
    ("model", "published"), [("deepseek-v3", 37e9), ("mixtral-8x7b", 12.9e9), ("gpt-oss-120b", 5.1e9)]
)
def test_a_token_meets_the_published_active_parameters(model: str, published: float) -> None:
    x = replace(scene(model).x, seq=number(1.0), document_tokens=number(1.0))
    active = float(model_flops_per_token(x)) / 6.0
    embedding = float(x.vocab * x.hidden) if model != "gpt-oss-120b" else 0.0
    assert active + embedding == pytest.approx(published, rel=0.02)


def test_zero_divides_experts_over_no_more_ranks_than_hold_them() -> None:
    x = scene("mixtral-8x7b", **MOE_PLAN).x
    assert float(expert_shards(x)) == float(expert_ranks(x)) == 4.0
    assert float(dense_shards(x)) == float(x.dp * x.cp) == 16.0


def test_even_layers_lie_evenly_and_the_head_s_stage_gets_the_remainder() -> None:
    even = scene(pp=4).x.stages
    assert (float(even.inner), float(even.last)) == (20.0, 20.0)
    uneven = scene(model="deepseek-v3", pp=8, ep=8).x.stages
    assert (float(uneven.inner), float(uneven.last)) == (8.0, 5.0)


@EVERY_MODEL
def test_one_rank_holds_the_whole_model_and_that_is_the_exact_count(model: str) -> None:
    """But for the last norm, latents' norms, and biases and scales of odd shapes."""
    s = scene(model, framework="other", devices=1, batch=1)
    dense, expert = layer_parameters(s.x, s.x.stages.moe_share)
    held = s.x.layers * (dense + expert) + (2.0 - s.x.tied) * vocabulary_parameters(s.x)
    assert float(held) == pytest.approx(float(total_parameters(s.x)), rel=1e-9)
    assert float(held) == pytest.approx(count_parameters(s.scenario.model).total, rel=1e-3)
