"""Every model type is read as what it is, with its exact size, or refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tools.cost.sizes import count_parameters
from tools.errors import InputError
from tools.scenario import ModelSpec
from tools.scenario.families import counted_types, get_family, refused_types
from tools.scenario.huggingface import parse_model
from tools.scenario.parse import check_model

CONFIGS = Path(__file__).resolve().parents[4] / "shared" / "configs"
TOLERANCE = 0.005
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


@pytest.mark.parametrize("model_type", sorted(counted_types().keys() - NO_DEFAULT_MODEL))
def test_a_type_has_the_size_that_transformers_builds_or_is_refused_by_name(model_type: str) -> None:
    if model_type in refused_types():
        with pytest.raises(InputError, match=r"model\.model_type: .* not priced: "):
            read({"model_type": model_type})
        return
    model = read({"model_type": model_type})
    assert math.isclose(count_parameters(model).total, counted_types()[model_type], rel_tol=TOLERANCE)


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
    config = {"model_type": "internvl", "text_config": text, "vision_config": {"hidden_size": 1024}}
    model = read({**config, "tie_word_embeddings": True})
    assert (model.num_hidden_layers, model.hidden_size, model.tie_word_embeddings) == (28, 2048, True)
    assert model.left_out == ("vision_config",)


def test_infinity_in_a_configuration_is_no_crash() -> None:
    model = read({"model_type": "mamba2", "time_step_limit": [0.0, math.inf]})
    assert model.mixer is not None
    assert model.mixer.kind == "mamba2"


def test_a_configuration_in_our_own_words_means_the_same() -> None:
    """What `asap import` writes can be read again."""
    for model_type in ("qwen3_next", "jamba", "falcon_h1", "zamba2", "deepseek_v4", "gemma4_text", "mamba2"):
        model = read({"model_type": model_type})
        assert read(model.model_dump(mode="json")) == model


@pytest.mark.parametrize(
    "model_type", ["llama", "qwen3_next", "deepseek_v3", "gemma3_text", "mixtral", "olmoe"]
)
def test_the_table_of_defaults_is_what_transformers_supplies(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[model_type]()
    for name, value in get_family(model_type).defaults.items():
        if hasattr(config, name) and getattr(config, name) is not None:
            assert getattr(config, name) == value, name
