"""Published recipes are legal plans with a source; the nearest to a workload is the one to name."""

from typing import Any

import pytest

from tests.unit.cost.scenes import MODELS
from tools.hardware import device_names
from tools.kb.recipes import Recipe, load_recipes, nearest_recipes
from tools.scenario import Scenario, parse_scenario

RECIPES = load_recipes()


def workload(model: str | dict[str, Any], device: str, count: int, **training: object) -> Scenario:
    return parse_scenario(
        {
            "model": MODELS[model] if isinstance(model, str) else model,
            "cluster": {"device": device, "num_devices": count},
            "training": {"seq_len": 8192, "global_batch_size": 512, "precision": "bf16"}
            | {"framework": "megatron-core"}
            | training,
        },
        need_plan=False,
    )


def test_there_are_as_many_recipes_as_the_issue_wants_from_several_publishers() -> None:
    assert 60 <= len(RECIPES) <= 150
    assert {"NVIDIA", "Google", "AMD"} < {recipe.publisher for recipe in RECIPES}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: f"{recipe.title}-{recipe.seq_len}")
def test_a_recipe_multiplies_out_and_names_its_source(recipe: Recipe) -> None:
    plan = recipe.plan
    assert plan.tp * plan.pp * plan.cp * plan.dp == recipe.num_devices
    assert plan.data_ranks % plan.dp_shard == 0
    assert recipe.global_batch_size % (plan.dp * plan.micro_batch_size) == 0
    assert recipe.device in device_names()
    assert recipe.source.where.startswith("https://github.com/")
    assert recipe.tokens_per_s_per_device > 0


@pytest.mark.parametrize(
    ("model", "device", "count", "training", "expected"),
    [
        ("llama-3.1-70b", "h100-sxm-80gb", 64, {"precision": "fp8"}, ("NVIDIA", "Llama-3-70B", 64)),
        ("llama-3.1-70b", "gb200", 64, {"precision": "fp8"}, ("NVIDIA", "Llama-3-70B", 64)),
        (
            "deepseek-v3",
            "gb200",
            256,
            {"seq_len": 4096, "precision": "mxfp8"},
            ("NVIDIA", "DeepSeek-V3", 256),
        ),
        ("deepseek-v3", "h800-sxm-80gb", 2048, {"seq_len": 4096}, ("NVIDIA", "DeepSeek-V3", 1024)),
        ("llama-3.1-8b", "tpu-v6e", 64, {"framework": "maxtext"}, ("Google", "Llama-3-8B", 64)),
        ("gpt-oss-120b", "b300", 64, {"seq_len": 4096}, ("NVIDIA", "gpt-oss-120b", 64)),
    ],
)
def test_the_nearest_recipe_is_the_one_for_this_model_on_this_device(
    model: str, device: str, count: int, training: dict[str, object], expected: tuple[str, str, int]
) -> None:
    first = nearest_recipes(workload(model, device, count, **training))[0]
    recipe = first.recipe
    assert first.is_same_model
    assert (recipe.publisher, recipe.model.name, recipe.num_devices) == expected


def test_a_model_of_another_kind_has_no_recipe() -> None:
    tiny = MODELS["llama-3.1-8b"] | {"num_hidden_layers": 2, "hidden_size": 512, "intermediate_size": 1024}
    assert nearest_recipes(workload(tiny, "h100-sxm-80gb", 64)) == []


def test_a_recipe_says_its_plan_and_its_figure() -> None:
    recipe = nearest_recipes(workload("deepseek-v3", "gb300", 256, seq_len=4096, precision="mxfp8"))[0].recipe
    assert recipe.title == "NVIDIA's recipe for DeepSeek-V3 on 256 gb300 (megatron-core, mxfp8, 2026-08)"
    assert recipe.says == (
        "pp 2, vpp 8, ep 32, dp 128, ZeRO 1, sequences of 4,096 tokens, micro-batch 1 of 4,096: "
        "6,288 tokens/s per device"
    )
