"""The number of parameters of published models, to the last one."""

from typing import Any

import pytest

from tests.unit.scenario.conftest import EXAMPLE
from tools.cost.predict import predict
from tools.scenario import parse_scenario

LLAMA_8B = {
    "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL = LLAMA_8B | {"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
SCOUT = {
    "num_hidden_layers": 48, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
    "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 202048,
    "num_local_experts": 16, "num_experts_per_tok": 1, "model_type": "llama4_text",
}  # fmt: skip
DEEPSEEK_V3 = {
    "num_hidden_layers": 61, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "vocab_size": 129280, "n_routed_experts": 256, "num_experts_per_tok": 8,
    "n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 1,
    "n_group": 8, "topk_group": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "parameters", "active"),
    [
        (EXAMPLE["model"], 70_553_706_496, 70_553_706_496),
        (LLAMA_8B, 8_030_261_248, 8_030_261_248),
        (LLAMA_8B | {"tie_word_embeddings": True}, 8_030_261_248 - 128256 * 4096, None),
        (MIXTRAL, 46_702_792_704, 12_879_925_248),
        (SCOUT, 107_769_861_120, None),
        (DEEPSEEK_V3, 671_026_404_352, 37_552_282_624),
    ],
    ids=["llama-70b", "llama-8b", "tied", "mixtral-8x7b", "llama-4-scout", "deepseek-v3"],
)
def test_published_models_have_their_published_size(
    model: dict[str, Any], parameters: int, active: int | None
) -> None:
    plan = {"tp": 8, "pp": 1, "cp": 1, "ep": 1, "dp": 8, "dp_shard": 8, "zero_stage": 1}
    training = EXAMPLE["training"] | {"framework": "other"}
    scenario = {**EXAMPLE, "model": model, "training": training, "plan": {**plan, "micro_batch_size": 1}}
    (prediction,) = predict([parse_scenario(scenario)])
    assert type(prediction.parameters) is int
    assert type(prediction.active_parameters) is int
    assert prediction.parameters == parameters
    if active is not None:
        assert prediction.active_parameters == active
