"""What each format says for a plan, read back by the format's own parser."""

import json
import tomllib
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tools.frameworks import FORMATS, Export, export_plan
from tools.scenario import parse_scenario

MOE = {"num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 4096}
Write = Callable[..., Export]


@pytest.fixture
def write(example: dict[str, Any]) -> Write:
    def call(name: str, model: dict[str, Any] | None = None, **plan: object) -> Export:
        example["plan"] |= plan
        example["model"] |= model or {}
        return export_plan(parse_scenario(example), name)

    return call


def arguments_of(export: Export) -> dict[str, str]:
    lines = [line.strip() for line in export.text.splitlines() if line.strip().startswith("--")]
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_file_name_and_ends_with_a_newline(write: Write, name: str) -> None:
    export = write(name)
    assert export.format == name
    assert "." in export.file_name
    assert export.text.endswith("\n")
    assert "\r" not in export.text


def test_torchtitan_replicates_what_the_shard_group_does_not_cover(write: Write) -> None:
    parallelism = tomllib.loads(write("torchtitan", cp=2, dp=16, dp_shard=8).text)["parallelism"]
    assert parallelism["data_parallel_replicate_degree"] == 4
    assert parallelism["data_parallel_shard_degree"] == 4
    assert parallelism["context_parallel_degree"] == 2


def test_torchtitan_hands_a_pipeline_all_micro_batches_of_a_step(write: Write) -> None:
    tables = tomllib.loads(write("torchtitan", pp=4, dp=8, dp_shard=8, micro_batch_size=2).text)
    assert tables["training"]["local_batch_size"] == 16
    assert tables["parallelism"]["pipeline_parallel_microbatch_size"] == 2


def test_torchtitan_repeats_every_setting_as_an_option(write: Write) -> None:
    export = write("torchtitan", recompute="full")
    tables = tomllib.loads(export.text)
    for table in ("training", "parallelism"):
        for key in tables[table]:
            assert f"--{table}." in export.text
            assert key in export.text.partition("[training]")[0]
    assert "activation_checkpoint:full" in export.text


def test_megatron_writes_expert_tensor_parallelism_even_when_it_is_one(write: Write) -> None:
    arguments = arguments_of(write("megatron", MOE, ep=8, sequence_parallel=True))
    assert arguments["--expert-model-parallel-size"] == "8"
    assert arguments["--expert-tensor-parallel-size"] == "1"


def test_megatron_shards_weights_by_its_own_fsdp(write: Write) -> None:
    arguments = arguments_of(write("megatron"))
    assert "--use-megatron-fsdp" in arguments
    assert arguments["--data-parallel-sharding-strategy"] == "optim_grads_params"


def test_megatron_keeps_copies_by_optimizer_instances(write: Write) -> None:
    arguments = arguments_of(write("megatron", zero_stage=1, dp_shard=8))
    assert arguments["--num-distributed-optimizer-instances"] == "4"


@pytest.mark.parametrize(
    ("layers", "flags"),
    [
        (80, set()),
        (79, {"--account-for-loss-in-pipeline-split"}),
        (78, {"--account-for-loss-in-pipeline-split", "--account-for-embedding-in-pipeline-split"}),
    ],
)
def test_megatron_counts_embedding_and_loss_where_layers_do_not_divide(
    write: Write, layers: int, flags: set[str]
) -> None:
    model = {"num_hidden_layers": layers}
    export = write("megatron", model, pp=4, vpp=5, dp=8, dp_shard=8, zero_stage=1)
    assert {name for name in arguments_of(export) if name.startswith("--account")} == flags


def test_megatron_lays_out_by_hand_what_leaves_three_places(write: Write) -> None:
    model = {"num_hidden_layers": 61}
    export = write("megatron", model, pp=4, vpp=4, dp=8, dp_shard=8, zero_stage=1)
    arguments = arguments_of(export)
    assert arguments["--pipeline-model-parallel-layout"] == "'Ettt|(tttt|)*14ttL'"
    assert "--num-virtual-stages-per-pipeline-rank" not in arguments


def test_megatron_gives_the_last_stage_fewer_layers(write: Write) -> None:
    export = write("megatron", {"num_hidden_layers": 77}, pp=8, dp=4, dp_shard=4, zero_stage=1)
    assert arguments_of(export)["--decoder-last-pipeline-num-layers"] == "7"


def test_nemo_switches_off_what_a_recipe_may_have_on(write: Write) -> None:
    overrides = yaml.safe_load(write("nemo", zero_stage=0, dp_shard=1).text)
    assert overrides["ddp"]["use_distributed_optimizer"] is False
    assert overrides["model"]["virtual_pipeline_model_parallel_size"] is None
    assert overrides["model"]["recompute_granularity"] is None
    assert overrides["mixed_precision"] == "bf16_mixed"


def test_deepspeed_batch_sizes_multiply(write: Write) -> None:
    settings = json.loads(write("deepspeed", micro_batch_size=2).text)
    steps = settings["gradient_accumulation_steps"]
    assert settings["train_micro_batch_size_per_gpu"] * steps * 32 == settings["train_batch_size"] == 128
    assert settings["tensor_parallel"] == {"autotp_size": 2}


def test_maxtext_axes_multiply_to_node_and_nodes(write: Write) -> None:
    settings = yaml.safe_load(write("maxtext", tp=4, dp=16, dp_shard=16).text)
    for level in ("ici", "dcn"):
        product = 1
        for key, size in settings.items():
            product *= size if key.startswith(level) else 1
        assert product == 8
    assert settings["ici_tensor_parallelism"] == 4


def test_maxtext_keeps_a_tpu_slice_inside(write: Write, example: dict[str, Any]) -> None:
    example["cluster"] = {"device": "tpu-v5p", "num_devices": 64}
    settings = yaml.safe_load(write("maxtext").text)
    assert settings["hardware"] == "tpu"
    assert settings["ici_fsdp_parallelism"] == 32
    assert all(size == 1 for key, size in settings.items() if key.startswith("dcn"))


def test_maxtext_splits_the_sequence_on_an_axis_of_its_own(write: Write) -> None:
    settings = yaml.safe_load(write("maxtext", sequence_parallel=True).text)
    assert settings["ici_tensor_sequence_parallelism"] == 2
    assert settings["ici_tensor_parallelism"] == 1


def test_maxtext_leaves_leading_dense_layers_outside_the_pipeline(
    write: Write, example: dict[str, Any]
) -> None:
    example["training"]["framework"] = "maxtext"
    model = MOE | {"num_hidden_layers": 61, "first_k_dense_replace": 1}
    plan = {"pp": 4, "vpp": 5, "dp": 8, "dp_shard": 8, "schedule": "gpipe"}
    settings = yaml.safe_load(write("maxtext", model, **plan).text)
    assert settings["pipeline_parallel_layers"] == 60
    assert settings["num_layers_per_pipeline_stage"] == 3


def test_accelerate_takes_deepspeed_for_stage_one(write: Write) -> None:
    settings = yaml.safe_load(write("accelerate", tp=1, dp=64, dp_shard=64, zero_stage=1).text)
    assert settings["distributed_type"] == "DEEPSPEED"
    assert settings["deepspeed_config"]["zero_stage"] == 1
    assert settings["deepspeed_config"]["gradient_accumulation_steps"] == 2


def test_accelerate_takes_plain_data_parallelism_for_stage_zero(write: Write) -> None:
    settings = yaml.safe_load(write("accelerate", tp=1, dp=64, dp_shard=1, zero_stage=0).text)
    assert settings["distributed_type"] == "MULTI_GPU"
    assert "fsdp_config" not in settings


@pytest.mark.parametrize("name", FORMATS)
def test_a_recompute_that_is_not_stated_is_left_open_and_told(write: Write, name: str) -> None:
    assert any("recompute" in note for note in write(name, recompute=None).notes)
