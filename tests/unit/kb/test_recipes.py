"""Published recipes are legal plans with a source; the nearest to a workload is the one to name."""

from typing import Any

import pytest

from tests.unit.physics.scenes import MODELS
from tools.kb.recipes import nearest_recipes
from tools.scenario import Scenario, parse_scenario


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
