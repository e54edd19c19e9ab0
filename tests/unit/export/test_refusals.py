"""What a format has no words for is refused with the field and the reason, never written wrongly."""

from typing import Any

import pytest

from tools.errors import InputError
from tools.frameworks import FORMATS, export_plan
from tools.scenario import parse_scenario

MOE = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 4096}
PIPED = {"pp": 4, "dp": 8, "dp_shard": 8, "zero_stage": 1}

REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = [
    # format, plan, model, training, field, part of the reason
    ("torchtitan", {"zero_stage": 1}, {}, {}, "plan.zero_stage", "no stage 1"),
    ("torchtitan", {}, {}, {"precision": "fp16"}, "training.precision", "torchtitan takes fp32"),
    ("torchtitan", {"ep": 2, "etp": 2}, MOE, {}, "plan.etp", "must be 1"),
    ("torchtitan", {"ep": 4, "zero_stage": 0}, MOE, {}, "plan.ep", "leaves tp (2)"),
    ("torchtitan", {"cp": 2, "dp": 16, "dp_shard": 1, "zero_stage": 0}, {}, {}, "plan.dp_shard", "of cp"),
    ("torchtitan", {"cp": 2, "dp": 16, "dp_shard": 2, "zero_stage": 0}, {}, {}, "plan.zero_stage", "cp 2"),
    ("torchtitan", {"pp": 16, "vpp": 3, "dp": 2, "dp_shard": 2}, {}, {}, "plan.vpp", "48 chunks"),
    ("megatron", {"schedule": "gpipe", "pp": 2, "dp": 16, "dp_shard": 16}, {}, {}, "plan.schedule", "1f1b"),
    ("megatron", {"pp": 32, "dp": 1, "dp_shard": 1}, {"num_hidden_layers": 37}, {}, "plan.pp", "empty"),
    ("megatron", {"ep": 16, "dp_shard": 2, "sequence_parallel": True}, MOE, {}, "plan.dp_shard", "16 repl"),
    ("nemo", {"ep": 16, "dp_shard": 2, "sequence_parallel": True}, MOE, {}, "plan.dp_shard", "16 replicas"),
    ("deepspeed", PIPED | {"vpp": 2}, {}, {}, "plan.vpp", "one chunk a stage"),
    ("deepspeed", PIPED | {"zero_stage": 2}, {}, {}, "plan.zero_stage", "pp is 4"),
    ("deepspeed", {"recompute": "selective"}, {}, {}, "plan.recompute", "whole layers"),
    ("deepspeed", {"sequence_parallel": True}, {}, {}, "plan.sequence_parallel", "AutoTP"),
    ("deepspeed", {}, {}, {"precision": "fp8"}, "training.precision", "fp32, fp16, bf16"),
    ("maxtext", {"zero_stage": 2}, {}, {}, "plan.zero_stage", "optimizer state (1)"),
    ("maxtext", {"zero_stage": 1, "dp_shard": 16}, {}, {}, "plan.dp_shard", "must be dp (32)"),
    ("maxtext", {"cp": 2, "dp": 16, "dp_shard": 16, "zero_stage": 1}, {}, {}, "plan.zero_stage", "must be 3"),
    ("maxtext", {"ep": 8, "dp_shard": 4}, MOE, {}, "plan.dp_shard", "multiple of 8"),
    ("maxtext", {"cp": 16, "dp": 2, "dp_shard": 32, "ep": 4}, MOE, {}, "plan.ep", "must divide dp (2)"),
    ("maxtext", PIPED | {"schedule": "1f1b"}, {}, {}, "plan.schedule", "gpipe"),
    ("accelerate", PIPED, {}, {}, "plan.pp", "without a pipeline"),
    ("accelerate", {"ep": 2}, MOE, {}, "plan.ep", "no expert axis"),
    ("accelerate", {"recompute": "selective"}, {}, {}, "plan.recompute", "whole layers"),
    ("accelerate", {"zero_stage": 0}, {}, {}, "plan.zero_stage", "with FSDP only"),
    ("accelerate", {"zero_stage": 1}, {}, {}, "plan.tp", "ZeRO alone"),
    ("accelerate", {}, {}, {"precision": "mxfp8"}, "training.precision", "Accelerate takes"),
    ("megatron", {}, {}, {"precision": "int8"}, "training.precision", "Megatron-LM takes fp32"),
    ("nemo", {}, {}, {"precision": "int8"}, "training.precision", "Megatron-Bridge takes fp32"),
    ("accelerate", {"cp": 2, "dp": 16, "dp_shard": 2}, {}, {}, "plan.dp_shard", "above it"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "plan", "model", "training", "field", "reason"), REFUSED)
def test_a_plan_that_a_format_cannot_express_is_refused(
    example: dict[str, Any],
    name: str,
    plan: dict[str, Any],
    model: dict[str, Any],
    training: dict[str, Any],
    field: str,
    reason: str,
) -> None:
    example["plan"] |= plan
    example["model"] |= model
    example["training"] |= training
    if training.get("precision") in ("mxfp8", "nvfp4"):
        example["cluster"]["device"] = "b200"
    if training.get("precision") == "int8":
        example["cluster"]["device"] = "tpu-v6e"
    scenario = parse_scenario(example)
    with pytest.raises(InputError) as caught:
        export_plan(scenario, name)
    assert caught.value.field == field
    assert reason in caught.value.allowed
    assert "\n" not in str(caught.value)


def test_experts_in_a_dense_model_are_refused_before_any_format(example: dict[str, Any]) -> None:
    example["plan"]["ep"] = 2
    with pytest.raises(InputError, match="dense model"):
        parse_scenario(example)


def test_an_unknown_format_gets_the_nearest_name(example: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="did you mean megatron"):
        export_plan(parse_scenario(example), "megatorn")


@pytest.mark.parametrize("name", FORMATS)
def test_a_scenario_without_a_plan_has_nothing_to_export(example: dict[str, Any], name: str) -> None:
    del example["plan"]
    scenario = parse_scenario(example, need_plan=False)
    with pytest.raises(InputError) as caught:
        export_plan(scenario, name)
    assert caught.value.field == "plan"
