"""megatron-core takes the exported arguments: its configuration class, and its groups on a fake world."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import pytest
import yaml

from tools.frameworks import Export, export_plan
from tools.frameworks.shell import parse_arguments
from tools.scenario import Scenario

pytestmark = [pytest.mark.real, pytest.mark.filterwarnings("ignore")]

EXPERT_OVERLAP: dict[str, Any] = {
    "moe": True, "zero_stage": 1, "ep": 8, "pp": 4, "vpp": 5, "dp": 16, "dp_shard": 16,
    "recompute": "selective", "recompute_modules": ["moe_act", "layernorm"],
}  # fmt: skip
PLANS: list[dict[str, Any]] = [
    {"zero_stage": 1},
    {"zero_stage": 1, "tp": 4, "pp": 2, "vpp": 5, "dp": 8, "dp_shard": 8, "recompute": "none"},
    {"zero_stage": 1, "tp": 8, "cp": 2, "dp": 4, "dp_shard": 8, "recompute": "selective"},
    {"zero_stage": 1, "dp_shard": 16},
    {"zero_stage": 0, "dp_shard": 1, "pp": 4, "dp": 16},
    {"zero_stage": 3, "tp": 2, "dp": 32, "dp_shard": 32},
    {"moe": True, "zero_stage": 1, "ep": 8, "tp": 2, "dp": 32, "dp_shard": 32},
    {"moe": True, "zero_stage": 1, "ep": 4, "etp": 2, "tp": 2, "pp": 4, "dp": 8, "dp_shard": 8},
    {"training": {"precision": "mxfp8"}, "zero_stage": 1},
    {"layers": 79, "zero_stage": 1, "pp": 4, "vpp": 5, "dp": 16, "dp_shard": 16},
    {"layers": 77, "zero_stage": 1, "pp": 4, "vpp": 5, "dp": 16, "dp_shard": 16},
    {"layers": 77, "zero_stage": 1, "pp": 8, "dp": 8, "dp_shard": 8},
    {"zero_stage": 1, "pp": 4, "vpp": 5, "dp": 16, "dp_shard": 16, "recompute_layers": 10},
    {
        "zero_stage": 1,
        "tp": 4,
        "dp": 16,
        "dp_shard": 16,
        "recompute": "none",
        "training": {"cuda_graph": True},
    },
    EXPERT_OVERLAP | {"training": {"overlap_moe_communication": True, "moe_dispatcher": "alltoall"}},
    EXPERT_OVERLAP | {"training": {"moe_dispatcher": "hybridep", "cuda_graph": True, "fused_loss": True}},
]
LISTS = ("recompute_modules", "cuda_graph_scope")
RENAMED = {
    "fp8_format": "fp8",
    "fp4_format": "fp4",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}


@pytest.fixture(autouse=True)
def transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron asks for the version of Transformer Engine, which needs a GPU to install."""
    module = pytest.importorskip("megatron.core.transformer.transformer_config")
    monkeypatch.setattr(module, "is_te_min_version", lambda *_, **__: True)


@pytest.fixture
def world() -> Iterator[None]:
    """64 ranks that exist by name only: groups are made, nothing is sent."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    distributed = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=64)
    yield
    pytest.importorskip("megatron.core.parallel_state").destroy_model_parallel()
    distributed.destroy_process_group()


def typed(values: dict[str, Any]) -> dict[str, Any]:
    return {key: int(value) if str(value).isdigit() else value for key, value in values.items()}


def transformer_config(scenario: Scenario, values: dict[str, Any]) -> Any:  # noqa: ANN401 - Megatron's own type
    module = pytest.importorskip("megatron.core.transformer.transformer_config")
    torch = pytest.importorskip("torch")
    model = scenario.model
    known = {field.name for field in fields(module.TransformerConfig)}
    values = values | {name: str(values[name]).split() for name in LISTS if name in values}
    chosen = {RENAMED.get(key, key): value for key, value in values.items()}
    moe = {"num_moe_experts": model.num_experts, "moe_router_topk": 4, "add_bias_linear": False}
    if "pipeline_model_parallel_layout" in chosen and scenario.plan is not None:
        # As megatron/training/arguments.py does: the chunks follow from the layout.
        chosen["virtual_pipeline_model_parallel_size"] = scenario.plan.vpp
    piped = {"pipeline_dtype": torch.bfloat16} if values.get("pipeline_model_parallel_size", 1) > 1 else {}
    return module.TransformerConfig(
        num_layers=model.num_hidden_layers,
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_key_value_heads,
        ffn_hidden_size=model.intermediate_size,
        **(moe if model.is_moe else {}),
        **piped,
        **{key: value for key, value in chosen.items() if key in known},
    )


@pytest.mark.parametrize("words", PLANS, ids=str)
def test_transformer_config_takes_the_arguments(
    build: Callable[..., Scenario], words: dict[str, Any]
) -> None:
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    scenario = build("megatron-core", **words)
    values = typed(parse_arguments(export_plan(scenario, "megatron").text))
    config = transformer_config(scenario, values)
    assert config.tensor_model_parallel_size == words.get("tp", 1)
    assert config.pipeline_model_parallel_size == words.get("pp", 1)
    assert (config.virtual_pipeline_model_parallel_size or 1) == words.get("vpp", 1)
    assert config.context_parallel_size == words.get("cp", 1)
    assert config.recompute_granularity == {"none": None}.get(
        words.get("recompute", "full"), words.get("recompute", "full")
    )


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("words", PLANS, ids=str)
def test_parallel_state_makes_the_plan_s_groups(
    build: Callable[..., Scenario], words: dict[str, Any]
) -> None:
    parallel_state = pytest.importorskip("megatron.core.parallel_state")
    scenario = build("megatron-core", **words)
    plan = scenario.plan
    assert plan is not None
    values = typed(parse_arguments(export_plan(scenario, "megatron").text))
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
    assert parallel_state.get_data_parallel_world_size() == plan.dp
    assert parallel_state.get_data_parallel_world_size(with_context_parallel=True) == plan.dp * plan.cp
    assert parallel_state.get_expert_model_parallel_world_size() == plan.ep
    if scenario.model.is_moe:
        assert parallel_state.get_expert_tensor_parallel_world_size() == plan.etp
    if plan.zero_stage:
        group = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=True)
        assert group.size() == plan.dp_shard


@pytest.mark.parametrize("words", PLANS, ids=str)
def test_nemo_overrides_are_fields_of_the_classes_that_bridge_derives_from(
    exported: Callable[..., Export], words: dict[str, Any]
) -> None:
    """Megatron-Bridge itself needs Transformer Engine, hence a GPU; its classes inherit these fields."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    overrides = yaml.safe_load(exported("nemo", "megatron-core", **words).text)
    bases = {
        "model": "transformer.transformer_config.TransformerConfig",
        "ddp": "distributed.DistributedDataParallelConfig",
        "optimizer": "optimizer.OptimizerConfig",
        "dataset": "datasets.gpt_dataset.GPTDatasetConfig",
    }
    for part, path in bases.items():
        module, _, name = path.rpartition(".")
        base = getattr(pytest.importorskip(f"megatron.core.{module}"), name)
        known = {field.name for field in fields(base)} | ({"seq_length"} if part == "model" else set())
        assert set(overrides[part]) <= known
