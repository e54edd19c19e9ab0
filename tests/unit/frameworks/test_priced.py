"""What is priced is what an exported file runs: no setting counts that the file does not state."""

import json
from typing import Any

import pytest

import kb_seed
from tests.unit.frameworks.scenarios import PLAN
from tools.errors import InputError
from tools.frameworks import ImportOptions, export_plan, import_plan
from tools.model.predict import predict
from tools.scenario import Scenario, parse_scenario
from tools.scenario.recipes import TRAINING_SETTINGS, model_keys, run_training

Key = tuple[str, str, str]
"""Model, device, precision."""
ROWS: dict[Key, dict[str, Any]] = {
    (row["model"], row["device"], row["precisions"][0]): row
    for row in map(
        json.loads, kb_seed.folder("recipes").joinpath("settings.jsonl").read_text("utf-8").splitlines()
    )
    if row["framework"] == "megatron-core" and not row.get("lora") and not model_keys()[row["model"]].hybrid
}
"""The newest recipe of each key; hybrids take the same way."""
FORMATS = ("megatron", "nemo")
SPLIT = {"tp": 2, "sequence_parallel": True, "dp": 32, "dp_shard": 32, "zero_stage": 1}
PLANS: dict[str, dict[str, Any]] = {
    "spread experts": {**SPLIT, "ep": 8},
    "full recomputation": {**SPLIT, "ep": 8, "recompute": "full"},
    "experts recomputed": {**SPLIT, "ep": 8, "recompute": "selective", "recompute_modules": ["moe"]},
    "experts together": {**SPLIT, "ep": 1},
    "stages of one chunk": {"tp": 1, "pp": 2, "dp": 32, "dp_shard": 32, "zero_stage": 1, "ep": 8},
    "unsharded": {"tp": 1, "dp": 64, "dp_shard": 1, "zero_stage": 0, "ep": 8},
}
OFF: dict[str, Any] = {
    "moe_dispatcher": "allgather", "overlap_moe_communication": False, "overlap_tensor_communication": False,
    "overlap_gradient_communication": False, "cuda_graph": "none", "compile": False, "fused_loss": False,
    "optimizer_state": "fp32", "activation_offload": False,
}  # fmt: skip
"""What Megatron does where its arguments say nothing."""


def model_of(key: Key) -> dict[str, Any]:
    sizes = model_keys()[key[0]]
    experts = {"num_experts": sizes.num_experts, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}
    return {
        "hidden_size": sizes.hidden_size, "num_hidden_layers": sizes.num_hidden_layers,
        "intermediate_size": sizes.intermediate_size or 4096, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256,
        **(experts if sizes.num_experts else {}),
    }  # fmt: skip


def scenario_of(key: Key, plan: dict[str, Any]) -> Scenario:
    _, device, precision = key
    if not model_keys()[key[0]].num_experts:
        modules = {"recompute_modules": ["mlp"]} if "recompute_modules" in plan else {}
        plan = {**plan, "ep": 1, **modules}
    return parse_scenario({
        "model": model_of(key),
        "cluster": {"device": device, "num_devices": 64},
        "training": {
            "seq_len": 4096, "global_batch_size": 256, "precision": precision, "framework": "megatron-core",
            "flash_attention": True,
        },
        "plan": {**PLAN, **plan},
    })  # fmt: skip


def as_the_file_runs(key: Key, scenario: Scenario, format: str) -> Scenario:
    """The scenario with every setting stated: what its file says, and off what it does not say."""
    export = export_plan(scenario, format)
    _, device, precision = key
    options = ImportOptions(model=model_of(key), device=device, num_devices=64, precision=precision)
    says = import_plan(export.text, format, options).scenario["training"]
    assert isinstance(says, dict)
    run = {name: says.get(name, off) for name, off in OFF.items()}
    run |= {name: says[name] for name in TRAINING_SETTINGS if name in says}
    if any("precision_scope" in note for note in export.notes):  # it stands in a file of its own
        run["precision_scope"] = run_training(scenario).precision_scope
    if not scenario.model.is_moe:
        del run["moe_dispatcher"]
    training = scenario.training.model_dump(exclude_none=True) | run
    return scenario.model_copy(update={"training": type(scenario.training).model_validate(training)})


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_plan_is_priced_as_the_file_exported_for_it_runs(format: str, plan: str) -> None:
    judged = 0
    for key in ROWS:
        try:
            scenario = scenario_of(key, PLANS[plan])
        except InputError:  # a recipe for a precision that the device has not
            continue
        run = as_the_file_runs(key, scenario, format)
        priced_s, run_s = (p.step_time_s for p in predict([scenario, run]))
        assert run_s == pytest.approx(priced_s, rel=1e-9), key
        judged += 1
    assert judged > 100
