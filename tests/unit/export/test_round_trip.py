"""Exporting a plan and importing the file gives the plan back, for every format that has both."""

from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from tools.errors import InputError
from tools.frameworks import FORMATS, IMPORT_FORMATS, Given, export_plan, import_plan
from tools.scenario import Plan, Scenario, parse_scenario

FRAMEWORKS = {
    "torchtitan": "torchtitan",
    "megatron": "megatron-core",
    "deepspeed": "deepspeed",
    "maxtext": "maxtext",
}
STAGES = {"torchtitan": (0, 2, 3), "megatron": (0, 1, 2, 3), "deepspeed": (0, 1, 2, 3), "maxtext": (0, 1, 3)}
SCHEDULES = {
    "torchtitan": ("gpipe", "1f1b", "interleaved", "zero_bubble"),
    "megatron": ("1f1b", "interleaved"),
    "deepspeed": ("1f1b",),
    "maxtext": ("gpipe",),
}
PRECISIONS = {
    "torchtitan": ("fp32", "bf16", "fp8", "mxfp8"),
    "megatron": ("fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"),
    "deepspeed": ("fp32", "fp16", "bf16"),
    "maxtext": ("fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8"),
}


@st.composite
def scenarios(draw: st.DrawFn, name: str) -> Scenario:
    """Scenarios that are legal for the framework; the few that are not are drawn again."""
    size = st.sampled_from([1, 2, 4])
    tp, cp = draw(size), draw(st.sampled_from([1, 1, 2]))
    pp, dp = draw(size), draw(st.sampled_from([1, 2, 4, 6, 8]))
    schedule = draw(st.sampled_from(SCHEDULES[name]))
    single = (
        pp == 1 or name == "deepspeed" or schedule == "1f1b" or (schedule, name) == ("gpipe", "torchtitan")
    )
    vpp = 1 if single else draw(st.sampled_from([2, 3] if schedule != "gpipe" else [1, 2]))
    experts = draw(st.booleans())
    split = dp * cp
    plan = {
        "tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "dp": dp,
        "ep": draw(st.sampled_from([size for size in (1, 2, 4) if dp % size == 0])) if experts else 1,
        "dp_shard": draw(st.sampled_from([size for size in range(1, split + 1) if split % size == 0])),
        "zero_stage": draw(st.sampled_from(STAGES[name])),
        "micro_batch_size": draw(st.sampled_from([1, 2, 4])),
        "sequence_parallel": tp > 1 and (draw(st.booleans()) if name != "deepspeed" else False),
        "recompute": draw(st.sampled_from(["none", "full"] + ["selective"] * (name != "deepspeed"))),
        "schedule": schedule if pp > 1 else None,
    }  # fmt: skip
    return _legal(draw, name, plan, experts)


def _legal(draw: st.DrawFn, name: str, plan: dict[str, Any], experts: bool) -> Scenario:
    layers = plan["pp"] * plan["vpp"] * draw(st.integers(3, 6)) - draw(st.integers(0, 3))
    model = {
        "num_hidden_layers": layers,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
    }
    if experts:
        model |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    batches = plan["pp"] * draw(st.integers(1, 5))
    training = {
        "seq_len": 4096,
        "global_batch_size": plan["dp"] * plan["micro_batch_size"] * batches,
        "precision": draw(st.sampled_from(PRECISIONS[name])),
        "framework": FRAMEWORKS[name],
    }
    devices = plan["tp"] * plan["pp"] * plan["cp"] * plan["dp"]
    device = "tpu-v6e" if training["precision"] == "int8" else "b200"
    cluster = {"device": device, "num_devices": devices, "devices_per_node": 8}
    scenario = {"model": model, "cluster": cluster, "training": training, "plan": plan}
    try:
        return parse_scenario(scenario)
    except InputError as error:
        event(f"illegal for the framework: {error.field}")
        assume(False)
        raise


def meant(plan: Plan, name: str) -> dict[str, Any]:
    """A plan without the freedom of saying the same thing in two ways."""
    fields = plan.model_dump()
    if plan.zero_stage == 0 or plan.dp_shard == 1:
        fields |= {"zero_stage": 0, "dp_shard": 1}
    if plan.pp == 1:
        fields["schedule"] = None
    if name == "deepspeed":
        if fields["dp_shard"] in (plan.dp, plan.dp * plan.cp) and fields["zero_stage"]:
            fields["dp_shard"] = plan.dp * plan.cp
        # DeepSpeed's model code decides recomputation: a file without it does not say "none".
        fields["recompute"] = None if plan.recompute == "none" else plan.recompute
    return fields


def imported(text: str, scenario: Scenario, name: str) -> Scenario:
    cluster, training = scenario.cluster, scenario.training
    beside = Given(
        model=scenario.model.model_dump(),
        device=cluster.device,
        num_devices=cluster.num_devices,
        devices_per_node=cluster.devices_per_node,
        seq_len=training.seq_len if name == "deepspeed" else None,
    )
    return parse_scenario(import_plan(text, name, beside).scenario)


@pytest.mark.parametrize("name", [name for name in IMPORT_FORMATS if name in FORMATS])
@settings(max_examples=150)
@given(data=st.data())
def test_export_then_import_gives_the_plan_back(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name))
    assert scenario.plan is not None
    try:
        text = export_plan(scenario, name).text
    except InputError as error:
        event(f"refused: {error.field}")
        assume(False)
        return
    again = imported(text, scenario, name)
    assert again.plan is not None
    assert meant(again.plan, name) == meant(scenario.plan, name)
    assert again.training == scenario.training
    assert again.cluster == scenario.cluster
