"""Every class of bad input gives one line that names the field, what was given and what is allowed."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tools.errors import InputError
from tools.scenario import parse_scenario
from tools.scenario.spec import TRAINING_OPTIONS


def change(example: dict[str, Any], path: str, value: object) -> dict[str, Any]:
    part, name = path.split(".")
    example[part][name] = value
    return example


def refusal(scenario: object) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_scenario(scenario)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("value", [None, 3, "text", [], True])
def test_a_scenario_is_an_object(value: object) -> None:
    assert refusal(value).field == "scenario"


@pytest.mark.parametrize("part", ["model", "cluster", "training", "plan"])
@pytest.mark.parametrize("value", [None, 3, "text", []])
def test_each_part_is_an_object(example: dict[str, Any], part: str, value: object) -> None:
    example[part] = value
    assert refusal(example).field == part


REQUIRED = {
    "model": ["num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size"],
    "cluster": ["device", "num_devices"],
    "training": ["seq_len", "global_batch_size", "precision", "framework"],
    "plan": ["tp", "pp", "cp", "dp", "zero_stage", "micro_batch_size"],
}


@pytest.mark.parametrize(
    ("part", "name"), [(part, name) for part, names in REQUIRED.items() for name in names]
)
def test_a_missing_field_is_named(example: dict[str, Any], part: str, name: str) -> None:
    del example[part][name]
    error = refusal(example)
    assert error.field == f"{part}.{name}"
    assert "got nothing" in str(error)


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("model.hiden_size", "hidden_size"),
        ("model.num_hidden_layer", "num_hidden_layers"),
        ("model.vocabsize", "vocab_size"),
        ("model.num_expert_per_tok", "num_experts_per_tok"),
        ("cluster.num_device", "num_devices"),
        ("training.seq_length", "seq_len"),
        ("training.globl_batch_size", "global_batch_size"),
        ("plan.tensor_parallel", "sequence_parallel"),
        ("plan.microbatch_size", "micro_batch_size"),
        ("plan.zero", "zero_stage"),
    ],
)
def test_a_misspelt_field_is_answered_with_the_nearest(
    example: dict[str, Any], path: str, meant: str
) -> None:
    error = refusal(change(example, path, 8))
    assert error.field == path
    assert meant in error.allowed


def test_an_unknown_top_level_field_is_refused(example: dict[str, Any]) -> None:
    error = refusal(example | {"modl": {}})
    assert error.field == "modl"
    assert "model" in error.allowed


def test_unknown_fields_of_a_configuration_are_ignored(example: dict[str, Any]) -> None:
    example["model"] |= {
        "rope_theta": 5e5,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "rms_norm_eps": 1e-5,
    }
    assert parse_scenario(example).model.hidden_size == 8192


NUMBERS = [
    *(f"model.{name}" for name in ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")),
    *("cluster.num_devices", "training.seq_len", "training.global_batch_size"),
    *(
        f"plan.{name}"
        for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "micro_batch_size")
    ),
]


@pytest.mark.parametrize("path", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, 10**12, 10**400, 1e300, float("nan"), float("inf"), float("-inf")])
def test_zero_negative_absurd_and_endless_numbers_are_refused(
    example: dict[str, Any], path: str, value: object
) -> None:
    error = refusal(change(example, path, value))
    assert error.field == path
    assert "allowed: an integer from 1 to" in error.allowed


@pytest.mark.parametrize("value", [-1, 4])
def test_zero_stages_are_0_to_3(example: dict[str, Any], value: int) -> None:
    error = refusal(change(example, "plan.zero_stage", value))
    assert (error.field, error.allowed) == ("plan.zero_stage", "allowed: an integer from 0 to 3")


def test_degrees_that_do_not_multiply_name_the_product(example: dict[str, Any]) -> None:
    error = refusal(change(example, "plan.dp", 16))
    assert error.field == "plan.dp"
    assert "4 * 2 * 1 * 16 = 128" in error.allowed
    assert "num_devices (64)" in error.allowed


def test_huge_degrees_do_not_wrap_around(example: dict[str, Any]) -> None:
    example["plan"] |= {"tp": 10**6, "pp": 10**6, "cp": 10**6, "dp": 10**6}
    assert refusal(example).field == "plan.dp"


def test_an_unknown_device_is_answered_with_the_nearest(example: dict[str, Any]) -> None:
    error = refusal(change(example, "cluster.device", "h100-sxm-80g"))
    assert error.field == "cluster.device"
    assert "h100-sxm-80gb" in error.allowed


def test_an_unknown_framework_is_answered_with_the_nearest(example: dict[str, Any]) -> None:
    error = refusal(change(example, "training.framework", "megatron"))
    assert error.field == "training.framework"
    assert "did you mean megatron-core" in error.allowed


def test_a_precision_that_the_device_lacks_is_refused(example: dict[str, Any]) -> None:
    error = refusal(change(example, "training.precision", "nvfp4"))
    assert error.field == "training.precision"
    assert "h100-sxm-80gb has" in error.allowed
    assert "bf16" in error.allowed


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("training.precision", "bf-16"),
        ("training.flash_attention", "yes"),
        ("plan.recompute", "some"),
        ("plan.schedule", "dualpipe"),
        ("plan.sequence_parallel", 1),
        ("cluster.device", 7),
        ("cluster.overrides", [1]),
        ("model.gated_mlp", "silu"),
        ("model.name", 70),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(example: dict[str, Any], path: str, value: object) -> None:
    error = refusal(change(example, path, value))
    assert error.field == path
    assert "allowed: " in error.allowed


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"num_key_value_heads": 12}, "model.num_key_value_heads"),
        ({"head_dim": None, "num_attention_heads": 63}, "model.num_attention_heads"),
        ({"intermediate_size": 0}, "model.intermediate_size"),
        ({"kv_lora_rank": 512}, "model.qk_nope_head_dim"),
        ({"num_experts": 8}, "model.num_experts_per_tok"),
        ({"num_experts": 8, "num_experts_per_tok": 9}, "model.num_experts_per_tok"),
        (
            {"num_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 80},
            "model.first_k_dense_replace",
        ),
        ({"num_experts": 8, "num_experts_per_tok": 2, "n_group": 3}, "model.n_group"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 5}, "model.topk_group"),
        ({"num_experts": 8, "num_experts_per_tok": 2, "topk_group": 1}, "model.topk_group"),
        ({"n_layer": 40}, "model.n_layer"),
        ({"layer_types": ["linear_attention"]}, "model.layer_types"),
        ({"text_config": 3}, "model.text_config"),
    ],
)
def test_a_model_that_contradicts_itself_is_refused(
    example: dict[str, Any], fields: dict[str, Any], field: str
) -> None:
    example["model"] |= fields
    assert refusal(example).field == field


def test_control_characters_of_a_field_name_are_not_printed(example: dict[str, Any]) -> None:
    example["plan"]["a\nb\x1b[2J"] = 1
    assert refusal(example).field == "plan.a?b?[2J"


def test_an_endless_field_name_is_cut(example: dict[str, Any]) -> None:
    example["plan"]["a" * 1_000_000] = 1
    assert len(str(refusal(example))) < 500


def test_a_model_of_endless_fields_is_refused_without_comparing_each(example: dict[str, Any]) -> None:
    example["model"] |= {f"field_{number}": number for number in range(1001)}
    error = refusal(example)
    assert (error.field, error.allowed) == ("model", "allowed: at most 1,000 fields")


def test_a_path_of_traces_longer_than_any_is_refused(example: dict[str, Any]) -> None:
    error = refusal(example | {"traces": "x" * 4097})
    assert (error.field, error.allowed) == ("traces", "allowed: a text of at most 4,096 characters")


def test_a_torus_whose_size_has_thousands_of_digits_is_refused(example: dict[str, Any]) -> None:
    error = refusal(change(example, "cluster.topology", {"torus_dimensions": [10**6] * 1000}))
    assert error.field == "cluster.topology.torus_dimensions"
    assert "num_devices (64)" in error.allowed


def test_the_content_of_a_large_value_is_not_printed(example: dict[str, Any]) -> None:
    error = refusal(change(example, "plan.tp", list(range(10_000))))
    assert "an array of 10000 values" in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_random_json_is_refused_and_nothing_else(value: object) -> None:
    with pytest.raises(InputError):
        parse_scenario(value)


PATHS = [
    *NUMBERS,
    *(f"model.{name}" for name in ("head_dim", "num_key_value_heads", "intermediate_size", "num_experts")),
    *(
        f"model.{name}"
        for name in ("num_local_experts", "num_experts_per_tok", "moe_layer_freq", "layer_types")
    ),
    *(
        f"model.{name}"
        for name in ("mlp_only_layers", "sliding_window", "sliding_window_pattern", "model_type")
    ),
    *(
        f"model.{name}"
        for name in ("hidden_act", "moe_layers", "text_config", "shared_expert_intermediate_size")
    ),
    *(
        f"model.{name}"
        for name in ("kv_lora_rank", "qk_nope_head_dim", "num_shared_experts", "n_head", "name")
    ),
    *("cluster.device", "cluster.devices_per_node", "cluster.overrides", "cluster.topology"),
    *("training.precision", "training.framework", "training.flash_attention"),
    *(f"training.{name}" for name in TRAINING_OPTIONS),
    *("cluster.name", "model.n_group", "model.topk_group"),
    *("plan.zero_stage", "plan.sequence_parallel", "plan.recompute", "plan.schedule", "plan.other"),
]


@given(st.dictionaries(st.sampled_from(PATHS), JSON | st.integers(1, 64), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_values_give_a_scenario_or_one_line(example: dict[str, Any], changes: dict[str, Any]) -> None:
    parts = {name: dict(part) for name, part in example.items()}
    for path, value in changes.items():
        change(parts, path, value)
    assert len(message_or_nothing(parts).splitlines()) <= 1


def message_or_nothing(scenario: object) -> str:
    try:
        parse_scenario(scenario)
    except InputError as error:
        return str(error)
    return ""
