"""Every model type is read as what it is, with its exact size, or refused by name."""

import json
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

import kb_seed
from tools.errors import InputError
from tools.physics.sizes import count_parameters
from tools.scenario import ModelSpec
from tools.scenario.families import get_family
from tools.scenario.huggingface import parse_model
from tools.scenario.parse import check_model

CONFIGS = Path(__file__).resolve().parents[4] / "shared" / "configs"
TOLERANCE = 0.005
MODELS = kb_seed.folder("models")
REFUSED = tomllib.loads(MODELS.joinpath("families.toml").read_text())["refused"]
COUNTED = {
    name: entry["parameters"]
    for name, entry in json.loads(MODELS.joinpath("transformers.json").read_text()).items()
    if entry.get("parameters")
}
"""Parameters of each type's default model, as transformers counts them."""
NO_DEFAULT_MODEL = {"deepseek_v2", "nemotron_h"}
"""Their classes leave fields open that every published file states."""


def read(config: dict[str, Any]) -> ModelSpec:
    model = parse_model(config)
    check_model(model)
    return model


def expected() -> dict[str, Any]:
    file = CONFIGS / "expected.json"
    counts: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return {name: entry for name, entry in counts.items() if entry["parameters"]}


@pytest.mark.skipif(not expected(), reason="../shared/configs is absent")
@pytest.mark.parametrize("name", expected() or ["absent"])
def test_a_published_configuration_has_its_exact_size(name: str) -> None:
    entry = expected()[name]
    text = entry["parameters"] - (entry["multimodal_parameters"] or 0)
    model = read(json.loads((CONFIGS / "huggingface" / name).read_text()))
    assert math.isclose(count_parameters(model).total, text, rel_tol=TOLERANCE)


@pytest.mark.parametrize("model_type", sorted(COUNTED.keys() - NO_DEFAULT_MODEL))
def test_a_type_has_the_size_that_transformers_builds_or_is_refused_by_name(model_type: str) -> None:
    if model_type in REFUSED:
        with pytest.raises(InputError, match=r"model\.model_type: .* not supported: "):
            read({"model_type": model_type})
        return
    model = read({"model_type": model_type})
    assert math.isclose(count_parameters(model).total, COUNTED[model_type], rel_tol=TOLERANCE)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True, "d_model": 512}, "encoder-decoder"),
        ({"model_type": "bart"}, "encoder-decoder"),
        ({"_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.30"}, "diffusion"),
        ({"model_type": "llada", "d_model": 4096}, "diffusion"),
        ({"model_type": "bert"}, "an encoder"),
        ({"model_type": "rwkv"}, "RWKV"),
        ({"model_type": "llamma", "hidden_size": 4096}, "not a known architecture; did you mean llama?"),
        ({"model_type": "llama", "block_configs": [{"ffn": 1}]}, "every layer has a width of its own"),
    ],
)
def test_another_kind_of_model_is_refused_by_name(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("?", r"\?")):
        read(config)


def test_a_text_model_inside_a_multimodal_one_is_read_and_the_rest_named() -> None:
    text = {"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 2048}
    config = {
        "model_type": "internvl",
        "text_config": text,
        "vision_config": {"hidden_size": 1024},
        "audio_config": None,
    }
    model = read({**config, "tie_word_embeddings": True})
    assert (model.num_hidden_layers, model.hidden_size, model.tie_word_embeddings) == (28, 2048, True)
    assert model.left_out == ("vision_config",)


@pytest.mark.parametrize(
    "model_type", ["llama", "qwen3_next", "deepseek_v3", "gemma3_text", "mixtral", "olmoe"]
)
def test_the_table_of_defaults_is_what_transformers_supplies(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[model_type]()
    for name, value in get_family(model_type).defaults.items():
        if hasattr(config, name) and getattr(config, name) is not None:
            assert getattr(config, name) == value, name


HUB_ONLY: dict[str, tuple[dict[str, Any], float]] = {
    # type: published configuration (sizes only), published billions of parameters
    "baichuan": ({"hidden_size": 5120, "intermediate_size": 13696, "num_attention_heads": 40,
                  "num_hidden_layers": 40, "vocab_size": 125696}, 13.9),
    "chatglm": ({"num_layers": 28, "hidden_size": 4096, "ffn_hidden_size": 13696, "num_attention_heads": 32,
                 "kv_channels": 128, "multi_query_attention": True, "multi_query_group_num": 2,
                 "padded_vocab_size": 65024}, 6.24),
    "qwen": ({"hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128, "num_attention_heads": 32,
              "num_hidden_layers": 32, "vocab_size": 151936}, 7.72),
    "arctic": ({"hidden_size": 7168, "intermediate_size": 4864, "num_attention_heads": 56,
                "num_key_value_heads": 8, "num_hidden_layers": 35, "num_local_experts": 128,
                "num_experts_per_tok": 2, "vocab_size": 32000, "moe_layer_frequency": 1}, 479.0),
    "dbrx": ({"d_model": 6144, "n_heads": 48, "n_layers": 40, "vocab_size": 100352,
              "attn_config": {"kv_n_heads": 8, "model_type": ""},
              "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}}, 131.6),
    "hunyuan_v1_moe": ({"hidden_size": 4096, "intermediate_size": 3072, "moe_intermediate_size": [3072] * 32,
                        "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "num_experts": 64,
                        "num_attention_heads": 32, "num_key_value_heads": 8, "attention_head_dim": 128,
                        "num_hidden_layers": 32, "vocab_size": 128167, "tie_word_embeddings": True}, 80.4),
    "minimax_text_01": ({"attn_type_list": ([0] * 7 + [1]) * 10, "hidden_size": 6144,
                         "intermediate_size": 9216,
                         "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
                         "num_hidden_layers": 80, "num_local_experts": 32, "num_experts_per_tok": 2,
                         "shared_intermediate_size": 0, "vocab_size": 200064}, 456.0),
    "gemma4": ({"hidden_size": 1536, "num_hidden_layers": 35, "intermediate_size": 6144,
                "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
                "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
                "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7}, 4.6286),
    "nemotron": ({"hidden_size": 18432, "intermediate_size": 73728, "num_attention_heads": 96,
                  "num_key_value_heads": 8, "head_dim": 192, "num_hidden_layers": 96,
                  "vocab_size": 256000}, 341.0),
}  # fmt: skip


@pytest.mark.parametrize("model_type", HUB_ONLY)
def test_a_type_that_transformers_cannot_build_by_default_has_its_published_size(model_type: str) -> None:
    config, billions = HUB_ONLY[model_type]
    model = read({"model_type": model_type, "architectures": [""], **config})
    assert math.isclose(count_parameters(model).total / 1e9, billions, rel_tol=TOLERANCE)
