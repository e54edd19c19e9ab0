"""Exporting a plan and importing the file gives the plan back, for every format that has both."""

from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from tests.unit.frameworks.scenarios import MODEL
from tools.errors import InputError
from tools.frameworks import ImportOptions, export_plan, import_plan
from tools.frameworks.exporting import chosen_levers
from tools.frameworks.formats import EXPERT_SETTINGS, NO_SETTINGS, REGISTRY
from tools.scenario import Plan, Scenario, parse_scenario
from tools.scenario.levers import framework_levers
from tools.scenario.recipes import recipe_settings
from tools.scenario.spec import TRAINING_OPTIONS, MoeDispatcher, RecomputeModule


class Range(NamedTuple):
    """What a framework's files can express."""

    framework: str
    stages: tuple[int, ...]
    schedules: tuple[str, ...]
    precisions: tuple[str, ...]


RANGES = {
    "torchtitan": Range(
        "torchtitan", (0, 2, 3), ("gpipe", "1f1b", "interleaved", "zero_bubble"),
        ("fp32", "bf16", "fp8", "mxfp8"),
    ),
    "megatron": Range(
        "megatron-core", (0, 1, 2, 3), ("1f1b", "interleaved"),
        ("fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"),
    ),
    "deepspeed": Range("deepspeed", (0, 1, 2, 3), ("1f1b",), ("fp32", "fp16", "bf16")),
    "nemo": Range(
        "megatron-core", (0, 1, 2, 3), ("1f1b", "interleaved"),
        ("fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4"),
    ),
    "nanotron": Range("nanotron", (0, 1), ("1f1b", "gpipe"), ("fp32", "fp16", "bf16")),
    "automodel": Range("automodel", (0, 3), ("1f1b", "gpipe"), ("bf16",)),
    "accelerate": Range("accelerate", (0, 2, 3), ("1f1b",), ("fp32", "fp16", "bf16", "fp8")),
    "huggingface": Range("huggingface", (0, 2, 3), ("1f1b",), ("fp32", "fp16", "bf16")),
    "maxtext": Range(
        "maxtext", (0, 1, 3), ("gpipe",), ("fp32", "fp16", "bf16", "fp8", "mxfp8", "nvfp4", "int8")
    ),
}  # fmt: skip


UNSPLIT = ("deepspeed", "accelerate", "huggingface")
"""Formats without sequence parallelism."""
SELECTIVE = ("torchtitan", "megatron", "nemo", "maxtext", "automodel")


SWITCHES = (
    "overlap_moe_communication",
    "overlap_tensor_communication",
    "overlap_gradient_communication",
    "fused_loss",
    "cuda_graph",
    "compile",
)
STATE_TYPES = st.sampled_from(("fp32", "bf16"))
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "moe_dispatcher": st.sampled_from(get_args(MoeDispatcher)),
        **dict.fromkeys(SWITCHES, st.booleans()),
        "cuda_graph": st.sampled_from(("none", "scoped", "full")),
        "optimizer_offload": st.booleans(),
        "routing": st.sampled_from(("natural", "forced")),
        "optimizer_state": STATE_TYPES,
        "gradient_dtype": STATE_TYPES,
        "activation_offload": st.sampled_from((True, 1)),
        "precision_scope": st.sampled_from(({"bf16_last_layers": 1}, {"bf16": ["lm_head", "qkv"]})),
        "moe_transport": st.just("gpu"),
        "packed_mean_tokens": st.just(700.0),
        "software_date": st.sampled_from(("2024-06", "2025-06", "2026-02", "2026-08")),
    },
)
OFF = (None, False, "none", "natural")
"""A file does not say that something is left alone."""


def recompute_dial(draw: st.DrawFn, plan: dict[str, Any]) -> dict[str, Any]:
    """Which layers or modules are recomputed; Megatron counts layers per chunk."""
    if plan["recompute"] == "full" and draw(st.booleans()):
        return {"recompute_layers": plan["vpp"] * draw(st.integers(1, 3))}
    if plan["recompute"] == "selective" and draw(st.booleans()):
        modules = st.lists(st.sampled_from(get_args(RecomputeModule)), min_size=1, unique=True)
        return {"recompute_modules": draw(modules)}
    return {}


@st.composite
def scenarios(draw: st.DrawFn, name: str) -> Scenario:
    """Scenarios that are legal for the framework; the few that are not are drawn again."""
    size = st.sampled_from([1, 2, 4])
    alone = name == "huggingface"  # data parallelism and nothing else
    tp = draw(size) if not alone else 1
    cp = draw(st.sampled_from([1, 1, 2] if not alone else [1]))
    pp, dp = (
        draw(size if name != "accelerate" and not alone else st.just(1)),
        draw(st.sampled_from([1, 2, 4, 6, 8])),
    )
    schedule = draw(st.sampled_from(RANGES[name].schedules))
    single = (
        pp == 1
        or name in ("deepspeed", "nanotron", "automodel")
        or schedule == "1f1b"
        or (schedule, name) == ("gpipe", "torchtitan")
    )
    vpp = 1 if single else draw(st.sampled_from([2, 3] if schedule != "gpipe" else [1, 2]))
    experts = draw(st.booleans()) and not alone
    split = dp * cp
    divisors = [size for size in range(1, split + 1) if split % size == 0]
    plan = {
        "tp": tp, "pp": pp, "vpp": vpp, "cp": cp, "dp": dp,
        "ep": draw(st.sampled_from([size for size in (1, 2, 4) if dp % size == 0])) if experts else 1,
        "dp_shard": split if alone else draw(st.sampled_from(divisors)),
        "zero_stage": draw(st.sampled_from(RANGES[name].stages)),
        "micro_batch_size": draw(st.sampled_from([1, 2, 4])),
        "sequence_parallel": tp > 1 and (draw(st.booleans()) if name not in UNSPLIT else False),
        "recompute": draw(st.sampled_from(["none", "full"] + ["selective"] * (name in SELECTIVE))),
        "schedule": schedule if pp > 1 else None,
    }  # fmt: skip
    if "recompute_layers" in REGISTRY[name].carries:
        plan |= recompute_dial(draw, plan)
    if "reshard_after_forward" in REGISTRY[name].carries and plan["zero_stage"] == 3:
        plan["reshard_after_forward"] = draw(st.sampled_from([None, True, False]))
    return _legal(draw, name, plan, experts)


def _legal(draw: st.DrawFn, name: str, plan: dict[str, Any], experts: bool) -> Scenario:
    layers = plan["pp"] * plan["vpp"] * draw(st.integers(3, 6)) - draw(st.integers(0, 3))
    model = MODEL | {
        "num_hidden_layers": layers,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_attention_heads": 16,
        "vocab_size": 32000,
    }
    if experts:
        model |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 512}
    batches = plan["pp"] * draw(st.integers(1, 5))
    training = {
        "seq_len": 4096,
        "global_batch_size": plan["dp"] * plan["micro_batch_size"] * batches,
        "precision": draw(st.sampled_from(RANGES[name].precisions)),
        "framework": RANGES[name].framework,
        **draw(SETTINGS),
    }
    devices = plan["tp"] * plan["pp"] * plan["cp"] * plan["dp"]
    device = "tpu-v6e" if training["precision"] == "int8" else "b200"
    cluster = {"device": device, "num_devices": devices, "devices_per_node": 8}
    scenario = {"model": model, "cluster": cluster, "training": training, "plan": plan}
    try:
        return parse_scenario(scenario)
    except InputError as error:
        event(f"illegal for the framework: {error.path}")
        assume(False)
        raise


def canonical(plan: Plan, name: str) -> dict[str, Any]:
    """The plan with one spelling for what can be stated in two ways."""
    fields = plan.model_dump()
    if plan.zero_stage == 0 or plan.dp_shard == 1:
        fields |= {"zero_stage": 0, "dp_shard": 1, "reshard_after_forward": None}
    elif "reshard_after_forward" in REGISTRY[name].carries:
        # FSDP without resharding is ZeRO 2 in other words, and with it the default.
        keeps = plan.zero_stage == 2 or plan.reshard_after_forward is False
        fields |= {"zero_stage": 3, "reshard_after_forward": False if keeps else None}
    if plan.pp == 1:
        fields["schedule"] = None
    if name == "accelerate" and fields["zero_stage"] == 0:
        fields["recompute"] = None  # without FSDP the script decides it
    if name == "deepspeed":
        if fields["dp_shard"] in (plan.dp, plan.dp * plan.cp) and fields["zero_stage"]:
            fields["dp_shard"] = plan.dp * plan.cp
        # DeepSpeed's model code decides recomputation: a file without it does not state "none".
        fields["recompute"] = None if plan.recompute == "none" else plan.recompute
    return fields


PRICED = ("cuda_graph_scopes", "gradient_dtype")
"""What a file states because it is priced so, or an import because Megatron does so by itself."""


def lever_fields(scenario: Scenario, framework: str) -> dict[str, bool | str]:
    """The fields that a file with the chosen levers states; one setting may say two things."""
    lines = {
        line: value for lever in chosen_levers(scenario, framework) for line, value in lever.writes.items()
    }
    return {
        lever.setting: lever.value
        for lever in sorted(framework_levers(framework), key=lambda lever: len(lever.writes))
        if lever.writes and lever.writes.items() <= lines.items()
    }


def assert_nothing_is_dropped(scenario: Scenario, again: Scenario, name: str, notes: tuple[str, ...]) -> None:
    """Every stated setting is in the file, or in a note, or what the framework does by itself."""
    t, framework = scenario.training, RANGES[name].framework
    levers = lever_fields(scenario, framework)
    silent = {lever.setting for lever in chosen_levers(scenario, framework) if not lever.writes}
    usual = recipe_settings(framework, scenario.model, "", t.precision).settings
    for field in {*TRAINING_OPTIONS} - {*(() if scenario.model.is_moe else EXPERT_SETTINGS)}:
        value, found = getattr(t, field), getattr(again.training, field)
        if field in levers:
            assert found == levers[field], field
        elif value in OFF or field in NO_SETTINGS:
            assert found in (*OFF, getattr(usual, field, None)) or field in PRICED, field
        elif found != value:
            is_noted = any(field in note for note in notes)
            assert is_noted or field in silent or value == getattr(usual, field, None), field
    basics = ("seq_len", "global_batch_size", "precision", "framework")
    assert all(getattr(again.training, field) == getattr(t, field) for field in basics)


@pytest.mark.parametrize("name", RANGES)
@settings(max_examples=75, suppress_health_check=[HealthCheck.filter_too_much])
@given(data=st.data())
def test_export_then_import_gives_the_scenario_and_the_file_back(name: str, data: st.DataObject) -> None:
    scenario = data.draw(scenarios(name))
    assert scenario.plan is not None
    try:
        export = export_plan(scenario, name)
    except InputError as error:
        event(f"refused: {error.path}")
        assume(False)
        return
    cluster, text = scenario.cluster, export.text
    options = ImportOptions(
        model=scenario.model.model_dump(),
        device=cluster.device,
        num_devices=cluster.num_devices,
        devices_per_node=cluster.devices_per_node,
        seq_len=scenario.training.seq_len if name in ("deepspeed", "accelerate", "huggingface") else None,
        global_batch_size=scenario.training.global_batch_size if name == "accelerate" else None,
        micro_batch_size=scenario.plan.micro_batch_size if name == "accelerate" else None,
    )
    imported = import_plan(text, name, options)
    assert not imported.unused
    again = parse_scenario(imported.scenario)
    assert again.plan is not None
    assert canonical(again.plan, name) == canonical(scenario.plan, name)
    assert (again.model, again.cluster) == (scenario.model, cluster)
    assert_nothing_is_dropped(scenario, again, name, export.notes)
    t = scenario.training
    if t.software_date is None and not any(getattr(t, name) in (False, "none") for name in SWITCHES):
        # A file says neither its release nor that a switch is off.
        assert export_plan(again, name).text == text
