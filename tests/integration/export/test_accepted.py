"""Each framework's own code takes what is exported and means the plan: hand-picked plans, and what ASAP
proposes for 96 published workloads.

MaxText has no package: its rules are restated from src/maxtext/configs/types.py (commit e591f30). nanotron's
release on PyPI (0.4) does not import (its modules import each other in a circle): a checkout of
huggingface/nanotron judges instead, its folder src on PYTHONPATH.
"""

import json
import math
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from research.published import read_runs
from tests.unit.frameworks.scenarios import MODEL
from tests.unit.frameworks.scenarios import PLAN as BASE_PLAN
from tools.errors import InfeasibleError
from tools.frameworks import export_plan
from tools.frameworks.formats import REGISTRY
from tools.frameworks.shell import parse_arguments
from tools.model.runs import Run
from tools.recommend.optimize import propose, workload_of
from tools.scenario import Plan, Scenario, parse_scenario

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]
Words = dict[str, Any]

EXPERTS = {"num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 2048}
PLAN = BASE_PLAN | {"tp": 1, "dp": 64, "dp_shard": 64, "sequence_parallel": None, "recompute": "full"}
PIPED = {"pp": 4, "dp": 8, "dp_shard": 8, "tp": 2}
DEEP = {"zero_stage": 1, "pp": 4, "vpp": 5, "dp": 16, "dp_shard": 16}
EXPERT_OVERLAP: Words = {
    "moe": True, "ep": 8, "recompute": "selective", "recompute_modules": ["moe_act", "layernorm"], **DEEP,
}  # fmt: skip
MEGATRON: list[Words] = [
    {"zero_stage": 1},
    {"zero_stage": 1, "tp": 4, "pp": 2, "vpp": 5, "dp": 8, "dp_shard": 8, "recompute": "none"},
    {"zero_stage": 1, "tp": 8, "cp": 2, "dp": 4, "dp_shard": 8, "recompute": "selective"},
    {"zero_stage": 1, "dp_shard": 16},
    {"zero_stage": 0, "dp_shard": 1, "pp": 4, "dp": 16},
    {"zero_stage": 3, "tp": 2, "dp": 32, "dp_shard": 32},
    {"moe": True, "zero_stage": 1, "ep": 8, "tp": 2, "dp": 32, "dp_shard": 32},
    {"moe": True, "zero_stage": 1, "ep": 4, "etp": 2, "tp": 2, "pp": 4, "dp": 8, "dp_shard": 8},
    {"training": {"precision": "mxfp8"}, "zero_stage": 1},
    {"layers": 79, **DEEP},
    {"layers": 77, **DEEP},
    {"layers": 77, "zero_stage": 1, "pp": 8, "dp": 8, "dp_shard": 8},
    {"recompute_layers": 10, **DEEP},
    {"zero_stage": 1, "tp": 4, "dp": 16, "dp_shard": 16, "recompute": "none",
     "training": {"cuda_graph": "scoped"}},
    EXPERT_OVERLAP | {"training": {"overlap_moe_communication": True, "moe_dispatcher": "alltoall"}},
    EXPERT_OVERLAP | {"training": {"moe_dispatcher": "hybridep", "cuda_graph": "scoped", "fused_loss": True}},
    {"zero_stage": 1, "training": {"cuda_graph": "full"}},
    {"zero_stage": 1, "recompute": "none",
     "training": {"activation_offload": 4, "optimizer_state": "bf16", "gradient_dtype": "bf16"}},
    {"zero_stage": 1, "training": {"precision": "fp8", "precision_scope": {"bf16_last_layers": 2}}},
    {"moe": True, "ep": 8, "recompute": "none", **DEEP, "training": {"activation_offload": True}},
    {"moe": True, "ep": 8, "recompute": "none", **DEEP,
     "training": {"routing": "forced", "cuda_graph": "scoped", "cuda_graph_scopes": ["attn", "moe_router"]}},
]  # fmt: skip
SHORT_STATE = {"optimizer_state": "bf16", "gradient_dtype": "bf16"}
PLANS: dict[str, list[Words]] = {
    "megatron": MEGATRON,
    "nemo": MEGATRON,
    "torchtitan": [
        {},
        {"dp_shard": 8, "zero_stage": 2, "recompute": "selective"},
        {"dp_shard": 1, "zero_stage": 0, "recompute": "none"},
        {"tp": 4, "dp": 16, "dp_shard": 16},
        {"tp": 4, "dp": 16, "dp_shard": 16, "sequence_parallel": False},
        {"tp": 2, "cp": 4, "dp": 8, "dp_shard": 16},
        PIPED,
        PIPED | {"micro_batch_size": 2, "schedule": "gpipe"},
        PIPED | {"vpp": 5, "schedule": "interleaved"},
        PIPED | {"vpp": 2, "schedule": "zero_bubble"},
        {"moe": True, "ep": 8},
        {"moe": True, "ep": 16, "tp": 2, "dp": 32, "dp_shard": 32},
        {"training": {"precision": "fp32"}},
        {"reshard_after_forward": False, "training": {"compile": True, **SHORT_STATE}},
        {"moe": True, "ep": 8, "training": {"routing": "forced", "optimizer_offload": True}},
    ],
    "deepspeed": [
        {},
        {"zero_stage": 1},
        {"zero_stage": 2, "recompute": "none"},
        {"zero_stage": 0, "dp_shard": 1},
        {"dp_shard": 8},
        {"tp": 4, "dp": 16, "dp_shard": 16, "zero_stage": 1},
        {"pp": 4, "dp": 16, "dp_shard": 16, "zero_stage": 1},
        {"cp": 4, "dp": 16, "dp_shard": 64},
        {"moe": True, "ep": 8, "zero_stage": 2},
        {"training": {"precision": "fp16"}},
        {"training": {"precision": "fp32"}},
        {"training": {"compile": True, **SHORT_STATE}},
        {"zero_stage": 1, "training": {"gradient_dtype": "fp32"}},
        {"zero_stage": 2, "training": {"optimizer_offload": True}},
    ],
    "accelerate": [
        {},
        {"zero_stage": 2, "dp_shard": 8, "recompute": "none"},
        {"tp": 4, "dp": 16, "dp_shard": 16},
        {"tp": 2, "cp": 2, "dp": 16, "dp_shard": 16},
        {"zero_stage": 1},
        {"zero_stage": 0, "dp_shard": 1},
        {"training": {"precision": "fp16"}},
        {"reshard_after_forward": False, "training": {"compile": True, "optimizer_offload": True}},
    ],
    "huggingface": [
        {},
        {"zero_stage": 2, "recompute": "none"},
        {"zero_stage": 0, "dp_shard": 1},
        {"zero_stage": 1},
        {"micro_batch_size": 2, "training": {"precision": "fp32"}},
        {"reshard_after_forward": False, "training": {"compile": True, "optimizer_offload": True}},
    ],
    "automodel": [
        {"zero_stage": 3},
        {"zero_stage": 3, "dp_shard": 8},
        {"zero_stage": 3, "tp": 4, "cp": 2, "dp": 8, "dp_shard": 16, "sequence_parallel": True},
        {"zero_stage": 3, "pp": 4, "dp": 16, "dp_shard": 16, "schedule": "gpipe", "recompute": "none"},
        {"zero_stage": 3, "pp": 2, "tp": 2, "dp": 16, "dp_shard": 16, "micro_batch_size": 2},
        {"moe": True, "zero_stage": 3, "ep": 8, "recompute": "selective"},
        {"zero_stage": 0, "dp_shard": 1, "recompute": "full"},
        {
            "zero_stage": 3,
            "reshard_after_forward": False,
            "training": {"compile": True, "optimizer_state": "fp32", "optimizer_offload": True},
        },
        {"moe": True, "ep": 8, "training": {"routing": "forced", "moe_dispatcher": "hybridep"}},
    ],
    "nanotron": [
        {"zero_stage": 1},
        {"zero_stage": 0, "dp_shard": 1, "tp": 8, "dp": 8, "sequence_parallel": True, "recompute": "none"},
        {"zero_stage": 1, "tp": 4, "pp": 4, "dp": 4, "dp_shard": 4, "schedule": "1f1b"},
        {"zero_stage": 1, "pp": 8, "dp": 8, "dp_shard": 8, "schedule": "gpipe"},
        {"zero_stage": 1, "cp": 4, "dp": 16, "dp_shard": 16},
        {"moe": True, "zero_stage": 1},
        {"zero_stage": 1, "training": {"gradient_dtype": "fp32"}},
    ],
}
LISTS = ("recompute_modules", "cuda_graph_scope", "offload_modules")
RENAMED = {
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}
NEMO_CLASSES = {
    "model": "transformer.transformer_config.TransformerConfig",
    "ddp": "distributed.DistributedDataParallelConfig",
    "optimizer": "optimizer.OptimizerConfig",
    "dataset": "datasets.gpt_dataset.GPTDatasetConfig",
}
"""Megatron-Bridge itself needs Transformer Engine, hence a GPU; its classes inherit from these."""
NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
FLASH_ATTENTION = ("flash_attn", "flash_attn.flash_attn_interface")

PER_FRAMEWORK = 12
HALF = {"precision": "bf16", "software_date": None}


def build(framework: str, *, moe: bool = False, layers: int = 80, **words: Any) -> Scenario:  # noqa: ANN401
    stated = {"seq_len": 8192, "global_batch_size": 256, "precision": "bf16", "framework": framework}
    training = stated | words.pop("training", {})
    return parse_scenario(
        {
            "model": MODEL | {"num_hidden_layers": layers} | (EXPERTS if moe else {}),
            "cluster": {"device": "b200", "num_devices": 64, "devices_per_node": 8},
            "training": training,
            "plan": PLAN | words,
        }
    )


def megatron_values(file: Path) -> Words:
    values = parse_arguments(file.read_text())
    numbers = {key: float(value) for key, value in values.items() if NUMBER.fullmatch(str(value))}
    return values | {key: int(value) if value.is_integer() else value for key, value in numbers.items()}


def accept_megatron(scenario: Scenario, plan: Plan, file: Path) -> None:
    module = pytest.importorskip("megatron.core.transformer.transformer_config")
    torch, model, values = pytest.importorskip("torch"), scenario.model, megatron_values(file)
    known = {field.name for field in fields(module.TransformerConfig)}
    chosen = {RENAMED.get(key, key): value for key, value in values.items()}
    chosen |= {name: str(chosen[name]).split() for name in LISTS if name in chosen}
    moe = {"num_moe_experts": model.num_experts, "moe_router_topk": 4, "add_bias_linear": False}
    if "pipeline_model_parallel_layout" in chosen:
        # As megatron/training/arguments.py does: the chunks follow from the layout.
        chosen["virtual_pipeline_model_parallel_size"] = plan.vpp
    if model.num_nextn_predict_layers:
        chosen["mtp_num_layers"] = model.num_nextn_predict_layers
    config = (module.MLATransformerConfig if model.kv_lora_rank else module.TransformerConfig)(
        num_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_key_value_heads,
        ffn_hidden_size=model.intermediate_size,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        **(moe if model.is_moe else {}),
        **({"pipeline_dtype": torch.bfloat16} if plan.pp > 1 else {}),
        **{key: value for key, value in chosen.items() if key in known},
    )
    assert config.tensor_model_parallel_size == plan.tp
    assert config.pipeline_model_parallel_size == plan.pp
    assert (config.virtual_pipeline_model_parallel_size or 1) == plan.vpp
    assert config.context_parallel_size == plan.cp
    assert config.recompute_granularity == (None if plan.recompute == "none" else plan.recompute)
    if values.get("use_megatron_fsdp"):
        assert plan.pp == 1
        assert values["no_gradient_accumulation_fusion"]


def accept_nemo(scenario: Scenario, plan: Plan, file: Path) -> None:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    overrides = yaml.safe_load(file.read_text())
    for part, path in NEMO_CLASSES.items():
        module, _, name = path.rpartition(".")
        base = getattr(pytest.importorskip(f"megatron.core.{module}"), name)
        known = {field.name for field in fields(base)} | ({"seq_length"} if part == "model" else set())
        assert set(overrides[part]) <= known


def accept_torchtitan(scenario: Scenario, plan: Plan, file: Path) -> None:
    manager = pytest.importorskip("torchtitan.config.manager", reason="torchtitan is not installed")
    dims = pytest.importorskip("torchtitan.distributed.parallel_dims").ParallelDims
    module, text = pytest.importorskip("torchtitan.config"), file.read_text()
    tables = tomllib.loads(text)
    module.ParallelismConfig(**tables["parallelism"])
    module.TrainingConfig(**tables["training"])
    lines = [line.lstrip("# ").split() for line in text.splitlines() if line.startswith("#   ")]
    name, flavor = ("deepseek_v3", "deepseek_v3_16b") if scenario.model.is_moe else ("llama3", "llama3_70b")
    options = ["--module", name, "--config", flavor, *(word for line in lines for word in line)]
    config = manager.ConfigManager().parse_args(options)
    mesh = dims.from_config(config.parallelism, world_size=scenario.cluster.num_devices)
    assert (mesh.tp, mesh.pp, mesh.cp, mesh.ep) == (plan.tp, plan.pp, plan.cp, plan.ep)
    assert mesh.dp_shard * mesh.cp == (plan.dp_shard if plan.sharding_stage else plan.cp)
    assert mesh.dp_replicate * mesh.dp_shard == plan.dp
    training = scenario.training
    assert config.training.global_batch_size == training.global_batch_size
    assert config.compile.enable or not training.compile  # a configuration function may compile by itself
    assert config.debug.moe_force_load_balance == (training.routing == "forced")
    assert config.training.dtype == ("bfloat16" if training.optimizer_state == "bf16" else "float32")
    assert config.training.enable_cpu_offload == training.optimizer_offload
    keeps = plan.sharding_stage == 2 or plan.reshard_after_forward is False
    assert config.parallelism.fsdp_reshard_after_forward == ("never" if keeps else "always")
    if plan.recompute:
        kind = {"full": "FullAC", "selective": "SelectiveAC", "none": "NoneType"}[plan.recompute]
        assert type(config.activation_checkpoint).__qualname__.startswith(kind)
    if plan.pp > 1:
        pipeline = pytest.importorskip("torchtitan.distributed.pipeline_parallel")
        model = MagicMock(layers=range(scenario.model.num_hidden_layers))
        chunks, layers, first, last = pipeline._get_pipeline_metadata(mesh, config.parallelism, model)
        parts = pipeline._generate_llm_fqn_per_model_part(chunks, layers, first, last)
        assert len(parts) == chunks == plan.pp * plan.vpp
        assert all(any("layers" in name for name in part) for part in parts)


def accept_deepspeed(scenario: Scenario, plan: Plan, file: Path) -> None:
    module = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
    settings = json.loads(file.read_text())
    config = module.DeepSpeedConfig(settings, mpu=MagicMock(get_data_parallel_world_size=lambda: plan.dp))
    assert config.train_batch_size == scenario.training.global_batch_size
    assert config.train_micro_batch_size_per_gpu == plan.micro_batch_size
    assert config.zero_optimization_stage == plan.sharding_stage
    assert config.tensor_parallel_config.autotp_size in (0, plan.tp)
    assert config.pipeline["stages"] in ("auto", plan.pp)
    assert config.expert_parallel_config.autoep_size == plan.ep
    training = scenario.training
    assert config.bfloat16_config.bf16_optimizer_states == (training.optimizer_state == "bf16")
    assert config.grad_accum_dtype == training.gradient_dtype
    assert config.compile_config.deepcompile == bool(training.compile)
    assert (config.zero_config.offload_optimizer is not None) == training.optimizer_offload
    is_hybrid = plan.sharding_stage == 3 and plan.dp_shard not in (plan.dp, plan.data_ranks)
    assert config.zero_config.zero_hpz_partition_size == (plan.dp_shard if is_hybrid else 1)
    more = MagicMock(get_data_parallel_world_size=lambda: 3 * plan.dp)
    with pytest.raises(AssertionError):  # batches must multiply
        module.DeepSpeedConfig(settings, mpu=more)


def accept_accelerate(scenario: Scenario, plan: Plan, file: Path) -> None:
    config_args = pytest.importorskip(
        "accelerate.commands.config.config_args", reason="accelerate is not installed"
    )
    launch = pytest.importorskip("accelerate.commands.launch")
    settings, cluster = yaml.safe_load(file.read_text()), scenario.cluster
    config = config_args.load_config_from_file(str(file))
    assert config.num_processes == cluster.num_devices
    kinds = {0: "MULTI_GPU", 1: "DEEPSPEED"}
    assert config.distributed_type.value == kinds.get(plan.sharding_stage, "FSDP")
    options = {action.dest for action in launch.launch_command_parser()._actions}
    for section in ("fsdp_config", "parallelism_config", "deepspeed_config", "dynamo_config"):
        assert set(settings.get(section, {})) <= options
    if sizes := settings.get("parallelism_config"):
        module = pytest.importorskip("accelerate.parallelism_config")
        mesh = module.ParallelismConfig(
            **{key.removeprefix("parallelism_config_"): size for key, size in sizes.items()}
        )
        assert (mesh.total_size, mesh.data_parallel_size) == (cluster.num_devices, plan.dp)
        assert mesh.dp_shard_size * mesh.cp_size == plan.dp_shard


def accept_huggingface(scenario: Scenario, plan: Plan, file: Path) -> None:
    module = pytest.importorskip("transformers", reason="transformers is not installed")
    if plan.sharding_stage == 1:
        pytest.importorskip("deepspeed", reason="transformers loads it for ZeRO 1")
    (arguments,) = module.HfArgumentParser(module.TrainingArguments).parse_json_file(file)
    assert arguments.per_device_train_batch_size == plan.micro_batch_size
    sequences = plan.micro_batch_size * plan.dp
    assert arguments.gradient_accumulation_steps * sequences == scenario.training.global_batch_size
    assert bool(arguments.fsdp) == (plan.sharding_stage in (2, 3))
    assert bool(arguments.deepspeed) == (plan.sharding_stage == 1)
    assert arguments.torch_compile == bool(scenario.training.compile)
    if plan.sharding_stage in (2, 3):
        keeps = plan.sharding_stage == 2 or plan.reshard_after_forward is False
        assert arguments.fsdp_plugin_args["reshard_after_forward"] is not keeps
        assert bool(arguments.fsdp_plugin_args.get("cpu_offload")) is scenario.training.optimizer_offload


def parse_automodel(file: Path) -> Words:
    """What Automodel makes of the file; it refuses keys and combinations it does not know."""
    recipes = pytest.importorskip(
        "nemo_automodel.recipes._dist_utils", reason="nemo-automodel is not installed"
    )
    parsed: Words = recipes.parse_distributed_section(yaml.safe_load(file.read_text())["distributed"])
    return parsed


def accept_automodel(scenario: Scenario, plan: Plan, file: Path) -> None:
    parsed, settings = parse_automodel(file), yaml.safe_load(file.read_text())
    sizes = parsed["parallelism_sizes"]
    wanted = (plan.tp, plan.pp, plan.cp, plan.ep)
    assert (sizes.tp_size, sizes.pp_size, sizes.cp_size, sizes.ep_size) == wanted
    local, batch = settings["step_scheduler"]["local_batch_size"], scenario.training.global_batch_size
    assert batch % (plan.dp * local) == 0
    if plan.pp > 1:
        assert parsed["pipeline_config"].pp_microbatch_size == plan.micro_batch_size
        assert batch == plan.dp * local


def accept_nanotron(scenario: Scenario, plan: Plan, file: Path) -> None:
    # Its models name FlashAttention, which no configuration uses and which needs a GPU to install.
    missing = [name for name in FLASH_ATTENTION if name not in sys.modules]
    sys.modules |= {name: MagicMock(__spec__=None, __version__="2.8") for name in missing}
    try:
        from nanotron.config.config import OptimizerArgs, TokensArgs  # type: ignore[import-not-found]
        from nanotron.config.parallelism_config import ParallelismArgs  # type: ignore[import-not-found]
    except ImportError as error:
        pytest.skip(f"nanotron is not on PYTHONPATH as a checkout: {error}")
    finally:  # other frameworks ask whether it is there
        for name in missing:
            del sys.modules[name]
    settings = yaml.safe_load(file.read_text())
    parallelism = ParallelismArgs(**settings["parallelism"])
    assert (parallelism.tp, parallelism.pp, parallelism.dp) == (plan.tp, plan.pp, plan.dp)
    assert (parallelism.context_parallel_size, parallelism.expert_parallel_size) == (plan.cp, plan.ep)
    tokens = TokensArgs(train_steps=1, **settings["tokens"])
    batch = tokens.micro_batch_size * tokens.batch_accumulation_per_replica * plan.dp
    assert batch == scenario.training.global_batch_size
    assert set(settings["optimizer"]) <= {field.name for field in fields(OptimizerArgs)}


def accept_maxtext(scenario: Scenario, plan: Plan, file: Path) -> None:
    settings, model = yaml.safe_load(file.read_text()), scenario.model
    axes = {name: value for name, value in settings.items() if name.endswith("_parallelism")}
    assert math.prod(axes.values()) == scenario.cluster.num_devices
    stages, context, tensor = (
        axes[f"ici_{axis}_parallelism"] * axes[f"dcn_{axis}_parallelism"]
        for axis in ("pipeline", "context", "tensor")
    )
    batch = int(scenario.cluster.num_devices * settings["per_device_batch_size"])
    assert batch * settings["gradient_accumulation_steps"] == scenario.training.global_batch_size
    if stages > 1:
        repeats, per_stage = settings["num_pipeline_repeats"], settings["num_layers_per_pipeline_stage"]
        assert stages * repeats * per_stage == settings["pipeline_parallel_layers"]
        assert settings["num_pipeline_microbatches"] % stages == 0
        assert batch % settings["num_pipeline_microbatches"] == 0
    assert settings["max_target_length"] % context == 0
    assert model.num_key_value_heads % tensor == 0 or bool(model.kv_lora_rank)


ACCEPT: dict[str, Callable[[Scenario, Plan, Path], None]] = {
    "megatron": accept_megatron,
    "nemo": accept_nemo,
    "torchtitan": accept_torchtitan,
    "deepspeed": accept_deepspeed,
    "accelerate": accept_accelerate,
    "huggingface": accept_huggingface,
    "maxtext": accept_maxtext,
    "automodel": accept_automodel,
    "nanotron": accept_nanotron,
}


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What a GPU node has: Transformer Engine for Megatron, ranks for DeepSpeed, bf16 for transformers."""
    if "megatron" in request.node.name:
        module = pytest.importorskip("megatron.core.transformer.transformer_config")
        monkeypatch.setattr(module, "is_te_min_version", lambda *_, **__: True)
    if "deepspeed" in request.node.name:
        module = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
        monkeypatch.setattr(module.dist, "get_rank", lambda: 0)
    if "huggingface" in request.node.name:
        module = pytest.importorskip("transformers.training_args")
        monkeypatch.setattr(module, "is_torch_bf16_gpu_available", lambda: True, raising=False)


@pytest.fixture
def world() -> Iterator[None]:
    """64 ranks that exist by name only: groups are made, nothing is sent."""
    distributed = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=64)
    yield
    distributed.destroy_process_group()


def written(format: str, words: Words, folder: Path) -> tuple[Scenario, Plan, Path]:
    return save(build(REGISTRY[format].framework or "other", **words), format, folder)


def save(scenario: Scenario, format: str, folder: Path) -> tuple[Scenario, Plan, Path]:
    export = export_plan(scenario, format)
    file = folder / export.file_name
    file.write_text(export.text)
    assert scenario.plan is not None
    return scenario, scenario.plan, file


@pytest.mark.parametrize(
    ("format", "words"), [(format, words) for format in PLANS for words in PLANS[format]], ids=str
)
def test_the_framework_takes_the_file_and_means_the_plan(format: str, words: Words, tmp_path: Path) -> None:
    ACCEPT[format](*written(format, words, tmp_path))


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("words", MEGATRON, ids=str)
def test_parallel_state_of_megatron_makes_the_plans_groups(words: Words, tmp_path: Path) -> None:
    parallel_state = pytest.importorskip("megatron.core.parallel_state")
    scenario, plan, file = written("megatron", words, tmp_path)
    values = megatron_values(file)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=values["tensor_model_parallel_size"],
        pipeline_model_parallel_size=values["pipeline_model_parallel_size"],
        virtual_pipeline_model_parallel_size=plan.vpp if plan.vpp > 1 else None,
        context_parallel_size=values["context_parallel_size"],
        expert_model_parallel_size=values.get("expert_model_parallel_size", 1),
        expert_tensor_parallel_size=values.get("expert_tensor_parallel_size"),
        num_distributed_optimizer_instances=values.get("num_distributed_optimizer_instances", 1),
        create_gloo_process_groups=False,
    )
    try:
        assert parallel_state.get_data_parallel_world_size() == plan.dp
        assert parallel_state.get_data_parallel_world_size(with_context_parallel=True) == plan.data_ranks
        assert parallel_state.get_expert_model_parallel_world_size() == plan.ep
        if scenario.model.is_moe:
            assert parallel_state.get_expert_tensor_parallel_world_size() == plan.etp
        if plan.zero_stage:
            shared = {"with_context_parallel": True, "partial_data_parallel": True}
            assert parallel_state.get_data_parallel_group(**shared).size() == plan.dp_shard
    finally:
        parallel_state.destroy_model_parallel()


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("words", PLANS["automodel"], ids=str)
def test_automodel_builds_the_mesh_of_the_plan(words: Words, tmp_path: Path) -> None:
    scenario, plan, file = written("automodel", words, tmp_path)
    parsed = parse_automodel(file)
    meshes = pytest.importorskip("nemo_automodel.components.distributed.mesh_utils")
    mesh, _ = meshes._create_device_meshes(
        parsed["strategy_config"], parsed["parallelism_sizes"], world_size=scenario.cluster.num_devices
    )
    if plan.zero_stage == 0:
        assert mesh is None
    else:
        sizes = dict(zip(mesh.mesh_dim_names, mesh.shape, strict=True))
        assert sizes["dp_replicate"] * sizes["dp_shard"] == plan.dp
        assert sizes["dp_shard"] * sizes["cp"] == plan.dp_shard


@dataclass(frozen=True)
class Target:
    """Whose validator, and which published runs are planned for it; `changes` if they ran something else."""

    format: str
    framework: str
    published_with: tuple[str, ...]
    constraints: Words
    changes: Words


TARGETS = (
    # As of megatron-core 0.16, which judges: the runs' own graphs may be those of a later one.
    Target("megatron", "megatron-core", ("megatron-core",), {},
           {"software_date": "2026-02", "cuda_graph_scopes": None}),
    Target("torchtitan", "torchtitan", ("torchtitan", "torch-fsdp"), {}, HALF),
    Target("deepspeed", "deepspeed", ("deepspeed", "torch-fsdp"), {}, HALF),
    Target("accelerate", "accelerate", ("torch-fsdp",), {"zero_stage": [2, 3]}, HALF),
    Target("huggingface", "huggingface", ("torch-fsdp",), {"zero_stage": [2, 3]}, HALF),
    Target("maxtext", "maxtext", ("maxtext",), {}, {}),
    Target("automodel", "automodel", ("torch-fsdp",), {"zero_stage": 3}, HALF),
    Target("nanotron", "nanotron", ("torch-fsdp",), {}, HALF),
)  # fmt: skip


def is_plain(run: Run) -> bool:
    """Pre-training of a transformer that ran."""
    return not (run.crashed or run.scenario.training.lora or run.scenario.model.num_mixer_layers)


def workloads() -> Iterator[tuple[str, Target, Scenario]]:
    runs = [run for run in read_runs() if is_plain(run)]
    for offset, target in enumerate(TARGETS):
        distinct: dict[tuple[str | None, str, int], Run] = {}
        for run in runs:
            if run.scenario.training.framework in target.published_with:
                cluster = run.scenario.cluster
                distinct.setdefault((run.scenario.model.name, cluster.device, cluster.num_devices), run)
        # Published with the framework itself first, then spread over the rest.
        own = [run for run in distinct.values() if run.scenario.training.framework == target.framework]
        others = [run for run in distinct.values() if run not in own][offset:]
        pool = own if len(own) >= PER_FRAMEWORK else [*own, *others]
        step = max(1, len(pool) // PER_FRAMEWORK)
        for run in pool[::step][:PER_FRAMEWORK]:
            yield run.id, target, run.scenario


CASES = list(workloads())


def test_there_are_twelve_workloads_per_framework() -> None:
    assert len(CASES) == PER_FRAMEWORK * len(TARGETS)


@pytest.mark.parametrize(
    ("target", "published"),
    [pytest.param(target, scenario, id=f"{target.format}-{name}") for name, target, scenario in CASES],
)
def test_every_proposal_is_accepted_by_the_framework(
    target: Target, published: Scenario, tmp_path: Path
) -> None:
    stated = json.loads(published.model_dump_json(exclude_none=True))
    training = stated["training"] | target.changes | {"framework": target.framework}
    cold = {"model": stated["model"], "cluster": stated["cluster"], "training": training}
    scenario = parse_scenario(cold | {"constraints": target.constraints}, need_plan=False)
    try:
        proposals = propose(workload_of(scenario)).proposals
    except InfeasibleError:
        pytest.skip("nothing fits the devices")
    for proposal in proposals:
        settings = scenario.training.model_copy(update=proposal.settings)
        planned = scenario.model_copy(update={"plan": proposal.plan, "training": settings})
        ACCEPT[target.format](*save(planned, target.format, tmp_path))
