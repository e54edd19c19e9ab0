"""The array model and the plain Python reference, written apart, give the same figures for any legal plan."""

import ast
import inspect
from dataclasses import replace
from functools import cache
from types import ModuleType
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cost.scenes import MODELS
from tools.cost import (
    reference,
    reference_case,
    reference_memory,
    reference_messages,
)
from tools.cost.calibration import Calibration, shipped_calibration
from tools.cost.constants import Shifts
from tools.cost.predict import predict
from tools.cost.reference import reference_prediction
from tools.scenario import RECOMPUTES, Plan, Scenario, parse_scenario
from tools.scenario.spec import Framework, MoeDispatcher, TrainingSpec
from tools.search.constraints import Constraints
from tools.search.space import PlanSpace, Table, count, decode_row, where

REFERENCE = (reference, reference_case, reference_memory, reference_messages)
DEVICES = (
    ("h100-sxm-80gb", "bf16"),
    ("h100-sxm-80gb", "fp8"),
    ("a100-sxm-80gb", "fp16"),
    ("gb200", "mxfp8"),
    ("b200", "nvfp4"),
    ("tpu-v5p", "bf16"),
    ("tpu-v6e", "int8"),
    ("mi300x", "bf16"),
    ("cpu", "fp32"),
)
FRAMEWORKS: tuple[str, ...] = get_args(Framework)
TOPOLOGIES: tuple[dict[str, Any], ...] = (
    {},
    {"devices_per_node": 4},
    {"devices_per_node": 1},
    {"topology": {"nvlink_domain_size": 16, "oversubscription": 2.0}},
    {"topology": {"torus_dimensions": [4, 4, 1]}},
)
PREDICTING = {"n_group": 8, "topk_group": 2, "num_nextn_predict_layers": 2}
ALL_MODELS = MODELS | {"deepseek-v3-mtp": MODELS["deepseek-v3"] | PREDICTING}
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "software_date": st.sampled_from(("2022-06", "2023-03", "2026-04", "2026-06")),
        "moe_dispatcher": st.sampled_from(get_args(MoeDispatcher)),
        "overlap_moe_communication": st.booleans(),
        "overlap_tensor_communication": st.booleans(),
        "overlap_gradient_communication": st.booleans(),
        "cuda_graph": st.booleans(),
        "capacity_factor": st.sampled_from((1.0, 1.25)),
        "optimizer_offload": st.booleans(),
        "lora": st.sampled_from(
            ({"rank": 16}, {"rank": 64, "targets": ["attention"]}, {"rank": 16, "weight_bits": 4})
        ),
    },
)
MODULES = ("core_attn", "layernorm", "mlp", "shared_experts", "moe", "moe_act", "mla_up_proj")
RECOMPUTED = st.one_of(
    st.fixed_dictionaries({"recompute": st.sampled_from((*RECOMPUTES, None))}),
    st.builds(lambda n: {"recompute": "full", "recompute_layers": n}, st.integers(1, 40)),
    st.builds(
        lambda names: {"recompute": "selective", "recompute_modules": tuple(sorted(names))},
        st.sets(st.sampled_from(MODULES), min_size=1),
    ),
)
WORKLOADS = st.fixed_dictionaries(
    {
        "model": st.sampled_from(sorted(ALL_MODELS)),
        "device": st.sampled_from(DEVICES),
        "framework": st.sampled_from(FRAMEWORKS),
        "topology": st.sampled_from(range(len(TOPOLOGIES))),
        "seq_len": st.sampled_from((2048, 8192)),
        "flash": st.booleans(),
    }
)


@cache
def workload(
    model: str, device: tuple[str, str], framework: str, topology: int, seq_len: int, flash: bool
) -> Scenario:
    """On 16 devices; a precision that only some devices have comes with the device."""
    return parse_scenario(
        {
            "model": ALL_MODELS[model],
            "cluster": {"device": device[0], "num_devices": 16, **TOPOLOGIES[topology]},
            "training": {
                "seq_len": seq_len,
                "global_batch_size": 48,
                "precision": device[1],
                "framework": framework,
                "flash_attention": flash,
            },
        },
        need_plan=False,
    )


def random_plan(scenario: Scenario, choose: np.random.Generator) -> Plan | None:
    """A row of the search's own table of legal plans, field by field so that every value is as likely."""
    space = PlanSpace(scenario, Constraints())
    table = one_row(space.degrees(), choose)
    for grow in (space.with_experts, space.with_sharding, space.with_pipeline, space.with_micro_batch):
        if not count(table):
            return None
        table = one_row(grow(table), choose)
    if not count(table):
        return None
    return Plan.model_validate(decode_row(table | {"recompute": np.zeros(1, dtype=np.int64)}, 0))


def one_row(table: Table, choose: np.random.Generator) -> Table:
    rows = count(table)
    return where(table, choose.integers(0, rows, min(rows, 1)))


def assert_same(scenario: Scenario, calibration: Calibration | None = None) -> None:
    prediction = predict([scenario], calibration)[0]
    breakdown_s, memory_gib = reference_prediction(scenario, calibration)
    ours = prediction.model_dump()
    for part, theirs in (("breakdown_s", breakdown_s), ("memory_gib", memory_gib)):
        assert list(ours[part]) == list(theirs)
        assert ours[part] == pytest.approx(theirs, rel=1e-9, abs=1e-15)
    assert sum(breakdown_s.values()) == pytest.approx(prediction.step_time_s, rel=1e-9)
    assert sum(memory_gib.values()) == pytest.approx(prediction.peak_memory_gib, rel=1e-9)


@settings(max_examples=300)
@given(WORKLOADS, OPTIONS, RECOMPUTED, st.integers(0, 2**32))
def test_any_legal_plan_costs_the_same_in_both_models(
    given: dict[str, Any], options: dict[str, Any], recomputed: dict[str, Any], seed: int
) -> None:
    scenario = workload(**given)
    plan = random_plan(scenario, np.random.default_rng(seed))
    if plan is not None:
        training = TrainingSpec.model_validate(scenario.training.model_dump() | options)
        plan = Plan.model_validate(plan.model_dump() | recomputed)
        assert_same(scenario.model_copy(update={"plan": plan, "training": training}))


BASE: dict[str, Any] = {
    "tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 16, "dp_shard": 16, "zero_stage": 1,
    "micro_batch_size": 1, "sequence_parallel": False, "recompute": "none", "schedule": "1f1b",
}  # fmt: skip
PIPED = {"tp": 2, "pp": 4, "dp": 2, "dp_shard": 2}
NAMED = {"recompute": "selective", "recompute_modules": MODULES}


@pytest.mark.parametrize(
    ("model", "device", "framework", "topology", "options", "plan"),
    [
        ("deepseek-v3-mtp", DEVICES[0], "megatron-core", {"devices_per_node": 1}, {}, {"ep": 16}),
        ("llama-3.1-8b", DEVICES[0], "nanotron", {}, {}, PIPED),
        ("llama-3.1-8b", DEVICES[0], "megatron-core", {"devices_per_node": 4}, {}, PIPED | {"vpp": 2}),
        ("llama-3.1-8b", DEVICES[0], "internevo", {}, {}, {}),
        ("llama-3.1-70b", ("gb200", "mxfp8"), "megatron-core", {}, {"optimizer_offload": True}, PIPED),
        ("mixtral-8x7b", DEVICES[2], "megatron-core", {}, {"optimizer_offload": True}, {"ep": 8}),
        ("deepseek-v3", DEVICES[0], "megatron-core", {}, {"flash_attention": False}, NAMED),
        ("deepseek-v3", DEVICES[1], "other", {}, {}, NAMED | {"recompute_modules": ("moe_act",)}),
        ("deepseek-v3", DEVICES[0], "torchtitan", {}, {}, PIPED | {"ep": 4, "recompute": "full"}),
        ("kimi-linear", DEVICES[0], "other", {}, {"lora": {"rank": 16}}, {"ep": 16, "zero_stage": 3}),
    ],
)
def test_rare_cases_cost_the_same_in_both_models(
    model: str,
    device: tuple[str, str],
    framework: str,
    topology: dict[str, Any],
    options: dict[str, Any],
    plan: dict[str, Any],
) -> None:
    scenario = workload(model, device, framework, TOPOLOGIES.index(topology), 8192, True)
    training = TrainingSpec.model_validate(scenario.training.model_dump() | options)
    planned = Plan.model_validate(BASE | plan)
    assert_same(scenario.model_copy(update={"plan": planned, "training": training}))


def test_measured_constants_move_both_models_equally() -> None:
    scenario = workload("llama-3.1-8b", DEVICES[0], "megatron-core", 0, 2048, True)
    shifts: Shifts = {
        "gemm_efficiency": {"stack": {"megatron-core/hopper": -0.2}},
        "tp_exposed": {"device": {}},
    }
    calibration = replace(shipped_calibration(), shifts=shifts)
    plan = random_plan(scenario, np.random.default_rng(1))
    planned = scenario.model_copy(update={"plan": plan})
    assert_same(planned, calibration)
    assert reference_prediction(planned) != reference_prediction(planned, calibration)


@pytest.mark.parametrize("module", REFERENCE)
def test_the_reference_imports_neither_arrays_nor_formulas(module: ModuleType) -> None:
    tree = ast.parse(inspect.getsource(module))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    data = {f"tools.cost.{name}" for name in ("calibration", "constants", "traits")}
    data |= {module.__name__ for module in REFERENCE}
    assert {name for name in imported if name and name.startswith("tools.cost")} <= data
    assert "numpy" not in imported
