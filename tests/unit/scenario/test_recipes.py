import pytest
from pydantic import JsonValue

from tools.scenario import parse_scenario
from tools.scenario.model import ModelSpec
from tools.scenario.recipes import StatedSettings, assumed_settings, recipe_settings
from tools.scenario.spec import Precision

SHAPES = {
    "DeepSeek": {"num_hidden_layers": 61, "hidden_size": 7168, "num_experts": 256},
    "Qwen3-30B": {"num_hidden_layers": 48, "hidden_size": 2048, "num_experts": 128},
    "gpt-oss-120b": {"num_hidden_layers": 36, "hidden_size": 2880, "num_experts": 128},
    "Moonlight": {
        "num_hidden_layers": 27,
        "hidden_size": 2048,
        "num_experts": 64,
        "intermediate_size": 11264,
    },
    "Llama-70B": {"num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 28672},
    "Llama-405B": {"num_hidden_layers": 126, "hidden_size": 16384, "intermediate_size": 53248},
    "nobody's": {"hidden_size": 3072, "num_experts": 96},
}


def model(name: str) -> ModelSpec:
    shape = {"intermediate_size": 2048, **SHAPES[name]}
    if "num_experts" in shape:
        shape |= {"num_experts_per_tok": 8, "moe_intermediate_size": 1024}
    sizes = {"num_hidden_layers": 8, "num_attention_heads": 16, "head_dim": 128, "vocab_size": 1000, **shape}
    training = {"seq_len": 4096, "global_batch_size": 8, "precision": "bf16", "framework": "megatron-core"}
    cluster = {"device": "h100-sxm-80gb", "num_devices": 8}
    return parse_scenario({"model": sizes, "cluster": cluster, "training": training}, need_plan=False).model


@pytest.mark.parametrize(
    ("name", "device", "precision", "date", "stated"),
    [  # shared notes on these rows, "What the recipes say"
        ("Qwen3-30B", "gb200", "bf16", "2025-11", {"moe_dispatcher": "hybridep"}),
        ("DeepSeek", "gb300", "bf16", "2025-12", {"moe_dispatcher": "hybridep", "cuda_graph": "scoped"}),
        (
            "DeepSeek",
            "h100-sxm-80gb",
            "fp8",
            "2025-11",
            {"moe_dispatcher": "deepep", "overlap_moe_communication": True, "cuda_graph": "none"},
        ),
        ("gpt-oss-120b", "gb200", "bf16", "2026-03", {"moe_dispatcher": "alltoall"}),
        ("gpt-oss-120b", "gb200", "bf16", "2026-04", {"moe_dispatcher": "hybridep"}),
        (
            "DeepSeek",
            "gb200",
            "bf16",
            "2026-04",
            {"cuda_graph": "scoped", "cuda_graph_scopes": ("attn", "moe_preprocess", "moe_router")},
        ),
        ("Qwen3-30B", "gb300", "mxfp8", "2026-04", {"cuda_graph": "scoped"}),
        (
            "Qwen3-30B",
            "gb300",
            "mxfp8",
            "2026-06",
            {"cuda_graph": "full", "cuda_graph_scopes": None, "moe_dispatcher": "hybridep"},
        ),
        ("DeepSeek", "b300", "mxfp8", "2026-06", {"cuda_graph": "scoped"}),
        ("DeepSeek", "b300", "mxfp8", None, {"cuda_graph": "full", "overlap_moe_communication": True}),
    ],
)
def test_recipes_set_what_their_release_set(
    name: str, device: str, precision: Precision, date: str | None, stated: dict[str, object]
) -> None:
    found = recipe_settings("megatron-core", model(name), device, precision, date)

    assert {field: getattr(found.settings, field) for field in stated} == stated
    assert "NVIDIA-NeMo/Megatron-Bridge@v0." in found.sources["cuda_graph"]


def test_every_setting_of_the_newest_release_names_its_source() -> None:
    for name in SHAPES:
        for framework in ("megatron-core", "automodel", "torchtitan", "deepspeed"):
            found = recipe_settings(framework, model(name), "h100-sxm-80gb", "bf16")
            assert found.sources.keys() == found.settings.model_fields_set
            assert found.sources


def test_a_model_of_nearly_the_depth_takes_the_recipe_and_its_source_says_so() -> None:
    def found(layers: int) -> StatedSettings:
        near = model("Qwen3-30B").model_copy(update={"num_hidden_layers": layers})
        return recipe_settings("megatron-core", near, "h100-sxm-80gb", "bf16")

    assert found(47).settings == found(48).settings
    assert found(47).sources["moe_dispatcher"].endswith("(for 48 layers)")
    assert not found(47).sources["cuda_graph"].startswith("NVIDIA/Megatron-LM")
    assert "layers" not in found(48).sources["moe_dispatcher"]
    assert found(24).settings != found(48).settings, "a model cut in half is not what it is for"


def test_a_plan_that_cannot_run_a_recipe_is_not_said_to() -> None:
    given: dict[str, JsonValue] = {
        "model": {
            "num_hidden_layers": 48,
            "hidden_size": 2048,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "intermediate_size": 6144,
            "vocab_size": 151936,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
        },
        "cluster": {"device": "h100-sxm-80gb", "num_devices": 8},
        "training": {
            "seq_len": 4096,
            "global_batch_size": 8,
            "precision": "bf16",
            "framework": "megatron-core",
        },
    }

    def assumed(**plan: JsonValue) -> dict[str, object]:
        stated: dict[str, JsonValue] = {"dp": 8, "dp_shard": 8, "zero_stage": 1, "micro_batch_size": 1}
        scenario = parse_scenario({**given, "plan": {**stated, "tp": 1, "pp": 1, "cp": 1, "ep": 8, **plan}})
        return {entry.name: entry.value for entry in assumed_settings(scenario)}

    graphed = {"cuda_graph": "scoped", "overlap_moe_communication": True}
    assert assumed(recompute="none").items() >= graphed.items()
    assert not assumed(recompute="full").keys() & {*graphed, "cuda_graph_scopes"}
    assert not assumed(recompute="none", ep=1).keys() & {"moe_dispatcher", "overlap_moe_communication"}
