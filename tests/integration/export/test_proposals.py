"""What ASAP proposes for 84 published workloads, each framework's own code accepts: plan, settings and file.

MaxText has no package: its rules are restated from src/maxtext/configs/types.py (commit e591f30).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.integration.export.test_automodel import accept_automodel
from tests.integration.export.test_deepspeed import DataRanks
from tests.integration.export.test_megatron_core import transformer_config, typed
from tests.integration.export.test_nanotron import accept_nanotron
from tests.integration.export.test_torchtitan import parsed
from tools.errors import InfeasibleError
from tools.frameworks import Export, export_plan
from tools.frameworks.shell import parse_arguments
from tools.recommend.optimize import propose, workload_of
from tools.scenario import Scenario, parse_scenario

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

ROWS = Path(__file__).resolve().parents[4] / "shared" / "groundtruth" / "dev.jsonl"
PER_FRAMEWORK = 12
HALF = {"precision": "bf16", "software_date": None}
AUTOMODEL = {"vpp": 1, "zero_stage": 3}
ACCELERATE = {"pp": 1, "ep": 1, "zero_stage": [2, 3], "recompute": ["none", "full"]}


@dataclass(frozen=True)
class Target:
    """Whose validator, and which published runs are planned for it; `changes` if they ran something else."""

    format: str
    framework: str
    published_with: tuple[str, ...]
    constraints: dict[str, Any]
    changes: dict[str, Any]


TARGETS = (
    Target("megatron", "megatron-core", ("megatron-core",), {}, {}),
    Target("torchtitan", "torchtitan", ("torchtitan", "torch-fsdp"), {}, HALF),
    Target("deepspeed", "deepspeed", ("deepspeed", "torch-fsdp"), {}, HALF),
    Target("accelerate", "torch-fsdp2", ("torch-fsdp",), ACCELERATE, HALF),
    Target("maxtext", "maxtext", ("maxtext",), {}, {}),
    Target("automodel", "torch-fsdp2", ("torch-fsdp",), AUTOMODEL, HALF),
    Target("nanotron", "nanotron", ("torch-fsdp",), {}, HALF),
)


def workloads() -> Iterator[tuple[str, Target, dict[str, Any]]]:
    if not ROWS.is_file():
        return
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    for offset, target in enumerate(TARGETS):
        distinct: dict[tuple[str, str, int], tuple[str, dict[str, Any]]] = {}
        for row in rows:
            scenario = row["scenario"]
            if scenario["training"]["framework"] in target.published_with:
                cluster = scenario["cluster"]
                key = (scenario["model"]["name"], cluster["device"], cluster["num_devices"])
                distinct.setdefault(key, (row["id"], scenario))
        # Published with the framework itself first, then spread over the rest.
        own = [row for row in distinct.values() if row[1]["training"]["framework"] == target.framework]
        others = [row for row in distinct.values() if row not in own][offset:]
        pool = own if len(own) >= PER_FRAMEWORK else [*own, *others]
        step = max(1, len(pool) // PER_FRAMEWORK)
        for name, scenario in pool[::step][:PER_FRAMEWORK]:
            yield name, target, scenario


CASES = list(workloads())


def stated(target: Target, scenario: dict[str, Any]) -> Scenario:
    training = scenario["training"] | target.changes | {"framework": target.framework}
    cold = {"model": scenario["model"], "cluster": scenario["cluster"], "training": training}
    return parse_scenario(cold | {"constraints": target.constraints}, need_plan=False)


def accept_megatron(scenario: Scenario, export: Export) -> None:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    values = typed(parse_arguments(export.text))
    config = transformer_config(scenario, values)
    assert scenario.plan is not None
    assert config.tensor_model_parallel_size == scenario.plan.tp
    fsdp = values.get("use_megatron_fsdp")
    assert not fsdp or (scenario.plan.pp == 1 and values["no_gradient_accumulation_fusion"])


def accept_torchtitan(scenario: Scenario, export: Export) -> None:
    plan = scenario.plan
    assert plan is not None
    config = parsed(export, moe=scenario.model.is_moe)
    dims = pytest.importorskip("torchtitan.distributed.parallel_dims").ParallelDims
    mesh = dims.from_config(config.parallelism, world_size=scenario.cluster.num_devices)
    assert (mesh.tp, mesh.pp, mesh.cp, mesh.ep) == (plan.tp, plan.pp, plan.cp, plan.ep)
    if plan.pp > 1:
        pipeline = pytest.importorskip("torchtitan.distributed.pipeline_parallel")
        model = SimpleNamespace(layers=range(scenario.model.num_hidden_layers))
        chunks, layers, first, last = pipeline._get_pipeline_metadata(mesh, config.parallelism, model)
        parts = pipeline._generate_llm_fqn_per_model_part(chunks, layers, first, last)
        assert len(parts) == plan.pp * plan.vpp


def accept_deepspeed(scenario: Scenario, export: Export) -> None:
    module = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
    assert scenario.plan is not None
    config = module.DeepSpeedConfig(json.loads(export.text), mpu=DataRanks(scenario.plan.dp))
    assert config.train_micro_batch_size_per_gpu == scenario.plan.micro_batch_size


def accept_accelerate(scenario: Scenario, export: Export) -> None:
    module = pytest.importorskip("accelerate.parallelism_config", reason="accelerate is not installed")
    sizes = yaml.safe_load(export.text).get("parallelism_config", {})
    if sizes:
        config = module.ParallelismConfig(
            **{key.removeprefix("parallelism_config_"): value for key, value in sizes.items()}
        )
        assert config.total_size == scenario.cluster.num_devices


def accept_maxtext(scenario: Scenario, export: Export) -> None:
    settings, model, devices = yaml.safe_load(export.text), scenario.model, scenario.cluster.num_devices
    axes = {name: value for name, value in settings.items() if name.endswith("_parallelism")}
    mesh = 1
    for size in axes.values():
        mesh *= size
    assert mesh == devices
    stages = axes["ici_pipeline_parallelism"] * axes["dcn_pipeline_parallelism"]
    batch = int(devices * settings["per_device_batch_size"])
    assert batch * settings["gradient_accumulation_steps"] == scenario.training.global_batch_size
    if stages > 1:
        repeats, per_stage = settings["num_pipeline_repeats"], settings["num_layers_per_pipeline_stage"]
        assert stages * repeats * per_stage == settings["pipeline_parallel_layers"]
        assert settings["num_pipeline_microbatches"] % stages == 0
        assert batch % settings["num_pipeline_microbatches"] == 0
    context = axes["ici_context_parallelism"] * axes["dcn_context_parallelism"]
    assert settings["max_target_length"] % context == 0
    tensor = axes["ici_tensor_parallelism"] * axes["dcn_tensor_parallelism"]
    assert model.num_key_value_heads % tensor == 0 or bool(model.kv_lora_rank)


ACCEPT: dict[str, Callable[[Scenario, Export], object]] = {
    "megatron": accept_megatron,
    "torchtitan": accept_torchtitan,
    "deepspeed": accept_deepspeed,
    "accelerate": accept_accelerate,
    "maxtext": accept_maxtext,
    "automodel": accept_automodel,
    "nanotron": accept_nanotron,
}


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """What a GPU node has: Transformer Engine for Megatron, ranks for DeepSpeed, which assumes one."""
    if "megatron" in request.node.name:
        module = pytest.importorskip("megatron.core.transformer.transformer_config")
        monkeypatch.setattr(module, "is_te_min_version", lambda *_, **__: True)
    if "deepspeed" in request.node.name:
        module = pytest.importorskip("deepspeed.runtime.config", reason="deepspeed is not installed")
        monkeypatch.setattr(module.dist, "get_rank", lambda: 0)


@pytest.mark.skipif(not CASES, reason="the shared folder with published measurements is not here")
def test_there_are_twelve_workloads_per_framework() -> None:
    assert len(CASES) == PER_FRAMEWORK * len(TARGETS)


@pytest.mark.parametrize(
    ("target", "published"),
    [pytest.param(target, scenario, id=f"{target.format}-{name}") for name, target, scenario in CASES],
)
def test_every_proposal_is_accepted_by_the_framework(target: Target, published: dict[str, Any]) -> None:
    scenario = stated(target, published)
    try:
        proposals = propose(workload_of(scenario)).proposals
    except InfeasibleError:
        pytest.skip("nothing fits the devices")
    for proposal in proposals:
        training = scenario.training.model_copy(update=proposal.settings)
        planned = scenario.model_copy(update={"plan": proposal.plan, "training": training})
        ACCEPT[target.format](planned, export_plan(planned, target.format))
