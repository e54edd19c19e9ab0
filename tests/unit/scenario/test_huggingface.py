"""Configurations of well-known models, as published, give the right canonical fields."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.errors import InputError
from tools.scenario import ModelSpec, parse_scenario

CLUSTER = {"device": "h100-sxm-80gb", "num_devices": 8}
TRAINING = {"seq_len": 4096, "global_batch_size": 8, "precision": "bf16", "framework": "other"}

DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_attention_heads": 128, "num_key_value_heads": 128,
    "vocab_size": 129280, "num_hidden_layers": 61, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 1,
    "n_group": 8, "topk_group": 4, "scoring_func": "sigmoid", "tie_word_embeddings": False, "ep_size": 1,
}  # fmt: skip
GPT_OSS_120B = {
    "model_type": "gpt_oss", "hidden_act": "silu", "hidden_size": 2880, "intermediate_size": 2880,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 36,
    "num_local_experts": 128, "experts_per_token": 4, "num_experts_per_tok": 4, "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 18, "vocab_size": 201088, "swiglu_limit": 7.0,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "activation_function": "gelu_new", "n_ctx": 1024, "n_embd": 768, "n_head": 12,
    "n_layer": 12, "n_positions": 1024, "n_inner": None, "vocab_size": 50257,
}  # fmt: skip
GEMMA2_9B = {
    "model_type": "gemma2", "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584, "intermediate_size": 14336, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 256, "num_hidden_layers": 42, "sliding_window": 4096, "sliding_window_size": 4096,
    "vocab_size": 256000, "query_pre_attn_scalar": 256,
}  # fmt: skip
LLAMA4_MAVERICK = {
    "model_type": "llama4", "vision_config": {"hidden_size": 1408, "num_hidden_layers": 34},
    "text_config": {
        "model_type": "llama4_text", "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "interleave_moe_layer_step": 2, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 48, "num_local_experts": 128,
        "num_experts_per_tok": 1, "vocab_size": 202048, "attention_chunk_size": 8192,
    },
}  # fmt: skip
QWEN2_57B = {
    "model_type": "qwen2_moe", "hidden_act": "silu", "hidden_size": 3584, "intermediate_size": 18944,
    "moe_intermediate_size": 2560, "shared_expert_intermediate_size": 20480, "num_attention_heads": 28,
    "num_key_value_heads": 4, "num_hidden_layers": 28, "num_experts": 64, "num_experts_per_tok": 8,
    "decoder_sparse_step": 1, "sliding_window": 65536, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
FALCON_7B = {
    "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71, "num_kv_heads": 71,
    "num_hidden_layers": 32, "multi_query": True, "new_decoder_architecture": False, "vocab_size": 65024,
}  # fmt: skip
GEMMA3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 5376, "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_key_value_heads": 16, "head_dim": 128, "num_hidden_layers": 62, "sliding_window": 1024,
        "sliding_window_pattern": 6, "vocab_size": 262208, "hidden_activation": "gelu_pytorch_tanh",
    },
}  # fmt: skip


def read(model: dict[str, Any]) -> ModelSpec:
    return parse_scenario({"model": model, "cluster": CLUSTER, "training": TRAINING}, need_plan=False).model


def subset(spec: ModelSpec, expected: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in expected}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "deepseek": (DEEPSEEK_V3, {
        "num_experts": 256, "num_shared_experts": 1, "shared_expert_intermediate_size": 2048,
        "moe_intermediate_size": 2048, "intermediate_size": 18432, "num_dense_layers": 3,
        "num_moe_layers": 58,
        "q_lora_rank": 1536, "kv_lora_rank": 512, "head_dim": 192, "v_head_dim": 128, "is_mla": True,
        "num_nextn_predict_layers": 1,
    }),
    "gpt-oss": (GPT_OSS_120B, {
        "num_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 2880, "head_dim": 64,
        "sliding_window": 128, "sliding_window_every": 2.0, "num_sliding_layers": 18, "gated_mlp": True,
    }),
    "gpt2": (GPT2, {
        "num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
        "num_key_value_heads": 12, "head_dim": 64, "gated_mlp": False, "tie_word_embeddings": True,
    }),
    "gemma2": (GEMMA2_9B, {
        "gated_mlp": True, "tie_word_embeddings": True, "head_dim": 256, "sliding_window": 4096,
        "sliding_window_every": 2.0, "num_sliding_layers": 21,
    }),
    "llama4": (LLAMA4_MAVERICK, {
        "hidden_size": 5120, "num_hidden_layers": 48, "intermediate_size": 16384,
        "moe_intermediate_size": 8192,
        "num_moe_layers": 24, "num_shared_experts": 1, "shared_expert_intermediate_size": 8192,
        "sliding_window": 8192, "num_sliding_layers": 36,
    }),
    "qwen2": (QWEN2_57B, {
        "num_shared_experts": 8.0, "shared_expert_intermediate_size": 20480, "sliding_window": 0,
    }),
    "falcon": (FALCON_7B, {"num_key_value_heads": 1, "intermediate_size": 4 * 4544, "gated_mlp": False}),
    "gemma3": (GEMMA3_27B, {"sliding_window_every": 1.2, "num_sliding_layers": 52, "gated_mlp": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_published_configuration_is_read_as_it_is(name: str) -> None:
    config, expected = CASES[name]
    assert subset(read(config), expected) == expected


BASE = {"num_hidden_layers": 8, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
        "vocab_size": 1000}  # fmt: skip
MOE = BASE | {"num_experts": 4, "num_experts_per_tok": 2}


ACTIVATIONS = {
    "silu": True, "swiglu": True, "geglu": True, "gelu_pytorch_tanh": True, "gelu": False, "relu": False,
    "gelu_new": False, "relu2": False,
}  # fmt: skip
SHARED = {"moe_intermediate_size": 1024, "shared_expert_intermediate_size": 512}
GROUPS = {"n_group": 2, "topk_group": 1}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # the contract's defaults
        (BASE, {"num_key_value_heads": 8, "head_dim": 64, "gated_mlp": True, "tie_word_embeddings": False}),
        # the activation says whether the MLP has a gate; the model type and a stated gate outrank it
        *((BASE | {"hidden_act": name}, {"gated_mlp": gated}) for name, gated in ACTIVATIONS.items()),
        (BASE | {"hidden_act": "gelu", "gated_mlp": True}, {"gated_mlp": True}),
        (BASE | {"hidden_act": "gelu_pytorch_tanh", "model_type": "starcoder2"}, {"gated_mlp": False}),
        # node-limited routing under three sets of names
        (MOE | GROUPS, GROUPS),
        (MOE | {"moe_router_num_groups": 2, "moe_router_group_topk": 1}, GROUPS),
        (MOE | {"n_expert_groups": 2, "n_limited_groups": 1, "n_groups": 7}, GROUPS),
        # further synonyms; equal ones may stand side by side
        (BASE | {"hidden_size": None, "n_embed": 64}, {"hidden_size": 64}),
        (BASE | {"mtp_num_hidden_layers": 64}, {"num_nextn_predict_layers": 64}),
        (BASE | {"n_layer": 8, "num_layers": 8}, {"num_hidden_layers": 8}),
        # a fraction of a shared expert is kept as its width
        (MOE | SHARED, {"num_shared_experts": 0.5, "shared_expert_intermediate_size": 512}),
        # a window without a pattern is on every layer; the contract's own fields outrank the model type
        (BASE | {"model_type": "mistral", "sliding_window": 256}, {"num_sliding_layers": 8}),
        (
            BASE | {"sliding_window": 256, "sliding_window_every": 4},
            {"sliding_window": 256, "num_sliding_layers": 2},
        ),
    ],
)
def test_a_field_is_read_from_what_states_it(config: dict[str, Any], expected: dict[str, Any]) -> None:
    assert subset(read(config), expected) == expected


@pytest.mark.parametrize("form", ["moe_layer_freq", "mlp_layer_types", "moe_layers", "mlp_only_layers"])
@given(st.lists(st.sampled_from([0, 1]), min_size=8, max_size=8).filter(any))
def test_expert_layers_are_counted_one_by_one_and_keep_their_places_if_irregular(
    form: str, flags: list[int]
) -> None:
    layers: dict[str, list[Any]] = {
        "moe_layer_freq": flags,
        "mlp_layer_types": ["sparse" if flag else "dense" for flag in flags],
        "moe_layers": [layer for layer, flag in enumerate(flags) if flag],
        "mlp_only_layers": [layer for layer, flag in enumerate(flags) if not flag],
    }
    spec = read(MOE | {form: layers[form]})
    assert spec.num_moe_layers == sum(flags)
    if len({after - before for before, after in pairwise(layers["moe_layers"])}) > 1:
        assert [int(spec.is_moe_layer(layer)) for layer in range(8)] == flags
        assert spec.first_k_dense_replace == flags.index(1)
    assert read(MOE | spec.model_dump()) == spec


@pytest.mark.parametrize("pattern", [[0] * 8, [1, 0], [], [0, 1, 2, 1, 1, 1, 1, 1], [True] * 8, ["1"] * 8])
def test_a_list_of_expert_layers_that_says_nothing_sensible_is_refused(pattern: list[Any]) -> None:
    with pytest.raises(InputError) as caught:
        read(MOE | {"moe_layer_freq": pattern})
    assert caught.value.path == "model.moe_layer_freq"
