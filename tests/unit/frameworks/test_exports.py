"""What each format writes for a plan, read back by the format's own parser, and what it refuses to write."""

import json
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.frameworks.scenarios import build
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS, Export, export_plan
from tools.frameworks.formats import REGISTRY
from tools.frameworks.shell import parse_arguments

REPO = Path(__file__).resolve().parents[3]
MOE = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 4096}
PIPED = {"pp": 4, "dp": 8, "dp_shard": 8, "zero_stage": 1}
LAYERS = "num_hidden_layers"
PARSERS: dict[str, Callable[[str], Any]] = {
    "torchtitan": tomllib.loads,
    "megatron": parse_arguments,
    "deepspeed": json.loads,
}


def flat(values: dict[str, Any]) -> dict[str, Any]:
    """The settings by name, without their sections."""
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        leaves |= flat(value) if isinstance(value, dict) else {name: value}
    return leaves


def settings_of(export: Export) -> dict[str, Any]:
    return flat(PARSERS.get(export.format, yaml.safe_load)(export.text))


WRITTEN: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # fact: format, plan, model, settings
    "torchtitan replicates what the shard group does not cover": (
        "torchtitan", {"cp": 2, "dp": 16, "dp_shard": 8}, {},
        {"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": 4, "context_parallel_degree": 2},
    ),
    "torchtitan hands a pipeline all micro-batches of a step": (
        "torchtitan", PIPED | {"zero_stage": 2, "micro_batch_size": 2}, {},
        {"local_batch_size": 16, "pipeline_parallel_microbatch_size": 2},
    ),
    "megatron writes expert tensor parallelism even if it is 1": (
        "megatron", {"ep": 8, "sequence_parallel": True}, MOE,
        {"expert_model_parallel_size": "8", "expert_tensor_parallel_size": "1"},
    ),
    "megatron shards weights by its own FSDP": (
        "megatron", {}, {},
        {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": "optim_grads_params"},
    ),
    "megatron keeps replicas by optimizer instances": (
        "megatron", {"zero_stage": 1, "dp_shard": 8}, {}, {"num_distributed_optimizer_instances": "4"},
    ),
    "megatron spells out a layout with three slots left over": (
        "megatron", PIPED | {"vpp": 4}, {LAYERS: 61},
        {"pipeline_model_parallel_layout": "Ettt|(tttt|)*14ttL",
         "num_virtual_stages_per_pipeline_rank": None},
    ),
    "megatron gives the last stage fewer layers": (
        "megatron", {"pp": 8, "dp": 4, "dp_shard": 4, "zero_stage": 1}, {LAYERS: 77},
        {"decoder_last_pipeline_num_layers": "7"},
    ),
    "nemo switches off what a recipe may have on": (
        "nemo", {"zero_stage": 0, "dp_shard": 1}, {},
        {"use_distributed_optimizer": False, "virtual_pipeline_model_parallel_size": None,
         "recompute_granularity": None, "mixed_precision": "bf16_mixed"},
    ),
    "deepspeed's batch sizes multiply": (
        "deepspeed", {"micro_batch_size": 2}, {},
        {"train_batch_size": 128, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
         "autotp_size": 2},
    ),
    "maxtext splits the sequence on an axis of its own": (
        "maxtext", {"sequence_parallel": True}, {},
        {"ici_tensor_sequence_parallelism": 2, "ici_tensor_parallelism": 1},
    ),
    "maxtext leaves leading dense layers outside the pipeline": (
        "maxtext", PIPED | {"vpp": 5, "zero_stage": 3, "schedule": "gpipe"},
        MOE | {LAYERS: 61, "first_k_dense_replace": 1},
        {"pipeline_parallel_layers": 60, "num_layers_per_pipeline_stage": 3},
    ),
    "accelerate runs stage 1 with DeepSpeed": (
        "accelerate", {"tp": 1, "dp": 64, "dp_shard": 64, "zero_stage": 1}, {},
        {"distributed_type": "DEEPSPEED", "zero_stage": 1, "gradient_accumulation_steps": 2},
    ),
    "accelerate runs stage 0 as plain data parallelism": (
        "accelerate", {"tp": 1, "dp": 64, "dp_shard": 1, "zero_stage": 0}, {},
        {"distributed_type": "MULTI_GPU", "fsdp_version": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("name", "plan", "model", "expected"), WRITTEN.values(), ids=WRITTEN)
def test_a_plan_is_written_as(
    name: str, plan: dict[str, Any], model: dict[str, Any], expected: dict[str, Any]
) -> None:
    framework = "maxtext" if name == "maxtext" else "other"
    settings = settings_of(export_plan(build(plan, model, framework=framework), name))
    assert {key: settings.get(key) for key in expected} == expected


@pytest.mark.parametrize("name", EXPORT_FORMATS)
def test_every_format_names_its_file_and_says_that_recompute_is_open(name: str) -> None:
    flat = {"tp": 1, "dp": 64, "dp_shard": 64}
    changes = {"nanotron": {"zero_stage": 1}, "huggingface": flat}
    export = export_plan(build({"recompute": None, **changes.get(name, {})}), name)
    assert export.format == name
    assert "." in export.file_name
    assert export.text.endswith("\n")
    assert "\r" not in export.text
    assert any("recompute" in note for note in export.notes)


def test_torchtitans_main_counts_tokens() -> None:
    text = export_plan(build(PIPED | {"zero_stage": 2, "micro_batch_size": 2}), "torchtitan").text
    seq, batch = 8192, 128
    assert [line.partition("main: --")[2] for line in text.splitlines() if "main: --" in line] == [
        f"training.num_tokens_per_microbatch_per_dp_rank {2 * seq}",
        f"training.num_tokens_per_train_step {batch * seq}",
        f"training.max_context_length {seq}",
        f"parallelism.num_pp_microbatches {batch // (8 * 2)}",
    ]


def test_every_export_names_the_release_that_judged_it() -> None:
    pins = set(re.findall(r'"([\w-]+)==([\d.]+)"', (REPO / "pyproject.toml").read_text()))
    for name in EXPORT_FORMATS:
        judged_by = REGISTRY[name].judged_by
        stated = re.findall(r"([a-z-]+) (\d+\.\d+\.\d+)", judged_by)
        assert judged_by
        assert all(pin in pins or pin[0] == "nemo-automodel" for pin in stated), judged_by


@pytest.mark.parametrize(
    ("device", "plan", "inside"),
    [("h100-sxm-80gb", {"tp": 4, "dp": 16, "dp_shard": 16}, 8), ("tpu-v5p", {}, 64)],
)
def test_maxtext_fills_a_node_or_a_tpu_slice_first(device: str, plan: dict[str, Any], inside: int) -> None:
    settings = settings_of(export_plan(build(plan, device=device), "maxtext"))
    for level, size in (("ici", inside), ("dcn", 64 // inside)):
        assert math.prod(value for key, value in settings.items() if key.startswith(level)) == size
    assert settings["hardware"] == ("tpu" if device.startswith("tpu") else "gpu")


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], str, str]] = [
    # format, plan, model, field, part of the reason
    ("torchtitan", {"zero_stage": 1}, {}, "zero_stage", "no stage 1"),
    ("torchtitan", {"ep": 2, "etp": 2}, MOE, "etp", "must be 1"),
    ("torchtitan", {"ep": 4, "zero_stage": 0}, MOE, "ep", "leaves tp (2)"),
    ("torchtitan", {"cp": 2, "dp": 16, "dp_shard": 1, "zero_stage": 0}, {}, "dp_shard", "of cp"),
    ("torchtitan", {"cp": 2, "dp": 16, "dp_shard": 2, "zero_stage": 0}, {}, "zero_stage", "cp 2"),
    ("torchtitan", {"pp": 16, "vpp": 3, "dp": 2, "dp_shard": 2}, {}, "vpp", "48 chunks"),
    ("megatron", {"schedule": "gpipe", "pp": 2, "dp": 16, "dp_shard": 16}, {}, "schedule", "1f1b"),
    ("megatron", {"pp": 32, "dp": 1, "dp_shard": 1}, {LAYERS: 37}, "pp", "empty"),
    ("megatron", {"ep": 16, "dp_shard": 2, "sequence_parallel": True}, MOE, "dp_shard", "16 replicas"),
    ("nemo", {"ep": 16, "dp_shard": 2, "sequence_parallel": True}, MOE, "dp_shard", "16 replicas"),
    ("deepspeed", PIPED | {"vpp": 2}, {}, "vpp", "one chunk"),
    ("deepspeed", PIPED | {"zero_stage": 2}, {}, "zero_stage", "pp is 4"),
    ("deepspeed", {"recompute": "selective"}, {}, "recompute", "whole layers"),
    ("deepspeed", {"sequence_parallel": True}, {}, "sequence_parallel", "AutoTP"),
    ("maxtext", {"zero_stage": 2}, {}, "zero_stage", "optimizer state (1)"),
    ("maxtext", {"zero_stage": 1, "dp_shard": 16}, {}, "dp_shard", "must be dp (32)"),
    ("maxtext", {"cp": 2, "dp": 16, "dp_shard": 16, "zero_stage": 1}, {}, "dp_shard", "must be 3"),
    ("maxtext", {"ep": 8, "dp_shard": 4}, MOE, "dp_shard", "multiple of cp * ep"),
    ("deepspeed", PIPED | {"tp": 2, "dp": 8, "dp_shard": 1, "zero_stage": 0}, {}, "tp", "beside a pipeline"),
    ("maxtext", {"cp": 16, "dp": 2, "dp_shard": 32, "ep": 4}, MOE, "ep", "must divide dp (2)"),
    ("maxtext", PIPED | {"schedule": "1f1b"}, {}, "schedule", "gpipe"),
    ("accelerate", PIPED, {}, "pp", "no pipeline"),
    ("accelerate", {"ep": 2}, MOE, "ep", "no expert axis"),
    ("accelerate", {"recompute": "selective"}, {}, "recompute", "whole layers"),
    ("accelerate", {"zero_stage": 0}, {}, "zero_stage", "with FSDP only"),
    ("accelerate", {"zero_stage": 1}, {}, "tp", "ZeRO alone"),
    ("accelerate", {"cp": 2, "dp": 16, "dp_shard": 2}, {}, "dp_shard", "above it"),
]


@pytest.mark.parametrize(("name", "plan", "model", "field", "reason"), REFUSED)
def test_a_plan_that_a_format_cannot_express_is_refused_with_field_and_reason(
    name: str, plan: dict[str, Any], model: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(InputError) as caught:
        export_plan(build(plan, model), name)
    assert caught.value.path == f"plan.{field}"
    assert reason in caught.value.rule
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "precision", "reason"),
    [
        ("torchtitan", "fp16", "torchtitan takes fp32"),
        ("megatron", "int8", "Megatron-LM takes fp32"),
        ("nemo", "int8", "Megatron-Bridge takes fp32"),
        ("deepspeed", "fp8", "fp32, fp16, bf16"),
        ("accelerate", "mxfp8", "Accelerate takes"),
    ],
)
def test_a_precision_that_a_format_lacks_is_refused_by_name(name: str, precision: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        export_plan(build({}, precision=precision), name)
    assert caught.value.path == "training.precision"
