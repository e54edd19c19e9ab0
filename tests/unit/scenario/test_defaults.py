"""What a plan does not state is what the framework does by default."""

import json
from typing import Any, get_args

import pytest

from tools.cost.predict import predict
from tools.errors import InputError
from tools.recommend.words import short
from tools.scenario import Plan, StatedPlan, get_framework, parse_scenario, resolve_defaults
from tools.scenario.spec import Framework

STATED = {
    "tp": 2, "pp": 2, "cp": 1, "ep": 1, "dp": 2, "dp_shard": 2, "zero_stage": 1, "micro_batch_size": 1,
}  # fmt: skip


def resolved(framework: str, **stated: object) -> Plan:
    return resolve_defaults(StatedPlan.model_validate(STATED | stated), framework, num_hidden_layers=80)


@pytest.mark.parametrize("framework", get_args(Framework))
def test_every_framework_has_defaults(framework: str) -> None:
    plan = resolved(framework)
    assert (plan.etp, plan.recompute) == (1, None)
    assert plan.vpp == (40 if framework == "other" else 1)
    assert get_framework(framework).zero_stage in (0, 1, 2, 3)


SEQUENCE_PARALLEL = {
    "megatron-core": True, "torchtitan": True, "other": True, "maxtext": False, "deepspeed": False,
    "internevo": False, "nanotron": False, "torch-fsdp": False, "torch-fsdp2": False,
}  # fmt: skip


@pytest.mark.parametrize(("framework", "expected"), SEQUENCE_PARALLEL.items())
def test_sequence_parallelism_follows_the_framework(framework: str, expected: bool) -> None:
    assert resolved(framework).sequence_parallel is expected


def test_an_unnamed_stack_interleaves_as_deep_as_the_layers_allow() -> None:
    assert resolved("other", pp=16).vpp == 80 // 16
    assert resolved("other", pp=1).vpp == 1
    assert resolved("other", vpp=2).vpp == 2


def test_sequence_parallelism_needs_tensor_ranks() -> None:
    assert resolved("megatron-core", tp=1, dp=4).sequence_parallel is False
    assert resolved("megatron-core", tp=1, dp=4, sequence_parallel=True).sequence_parallel is False


@pytest.mark.parametrize(
    ("framework", "vpp", "schedule"),
    [("megatron-core", 1, "1f1b"), ("megatron-core", 2, "interleaved"), ("maxtext", 2, "gpipe"),
     ("nanotron", 1, "gpipe")],
)  # fmt: skip
def test_the_schedule_follows_framework_and_chunks(framework: str, vpp: int, schedule: str) -> None:
    assert resolved(framework, vpp=vpp).schedule == schedule


def test_a_schedule_means_nothing_without_a_pipeline() -> None:
    assert resolved("maxtext", pp=1, schedule="1f1b").schedule == "gpipe"


def test_what_is_stated_stays() -> None:
    stated: dict[str, Any] = {"vpp": 3, "etp": 2, "sequence_parallel": False, "recompute": "full"}
    plan = resolved("megatron-core", **stated)
    assert plan.model_dump() == plan.model_dump() | STATED | stated


@pytest.mark.parametrize(
    ("stated", "expected"),
    [({"zero_stage": 0}, 1), ({"zero_stage": 1}, 8), ({"zero_stage": 3}, 8), ({"dp_shard": 2}, 2)],
)
def test_experts_and_the_sharding_group_need_not_be_stated(stated: dict[str, Any], expected: int) -> None:
    """A dense model has no experts, and ZeRO shards over all ranks with the same weights."""
    plan = resolved("megatron-core", **{"ep": None, "dp_shard": None, "dp": 4, "cp": 2} | stated)
    assert (plan.ep, plan.dp_shard) == (1, expected)


def test_a_plan_without_ep_and_dp_shard_is_accepted(example: dict[str, Any]) -> None:
    stated = parse_scenario(example).plan
    del example["plan"]["ep"], example["plan"]["dp_shard"]
    assert parse_scenario(example).plan == stated


@pytest.mark.parametrize(
    ("plan", "field"),
    [
        ({"recompute": "selective", "recompute_layers": 4}, "plan.recompute_layers"),
        ({"recompute": "full", "recompute_layers": 0}, "plan.recompute_layers"),
        ({"recompute": "full", "recompute_layers": 41}, "plan.recompute_layers"),
        ({"recompute": "full", "recompute_modules": ["mlp"]}, "plan.recompute_modules"),
        ({"recompute_modules": ["mlp"]}, "plan.recompute_modules"),
        ({"recompute": "selective", "recompute_modules": []}, "plan.recompute_modules"),
        ({"recompute": "selective", "recompute_modules": [1]}, "plan.recompute_modules"),
        ({"recompute": "selective", "recompute_modules": "mlp"}, "plan.recompute_modules"),
    ],
)
def test_how_much_is_recomputed_is_checked_by_name(
    example: dict[str, Any], plan: dict[str, Any], field: str
) -> None:
    """The example has 80 layers on two stages."""
    with pytest.raises(InputError) as caught:
        parse_scenario(with_recompute(example, plan))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "plan",
    [
        {"recompute": "full", "recompute_layers": 4},
        {"recompute": "selective", "recompute_modules": ["core_attn", "mlp"]},
    ],
)
def test_how_much_is_recomputed_is_kept_and_not_priced(example: dict[str, Any], plan: dict[str, Any]) -> None:
    detailed = parse_scenario(with_recompute(example, plan))
    plain = parse_scenario(with_recompute(example, {"recompute": plan["recompute"]}))
    assert detailed.plan is not None
    assert plain.plan is not None
    assert json.loads(detailed.plan.model_dump_json()).items() >= plan.items()
    assert Plan.model_validate(detailed.plan.model_dump()) == detailed.plan
    assert not {"recompute_layers", "recompute_modules"} & plain.plan.model_dump().keys()
    assert predict([detailed]) == predict([plain])
    assert short(detailed.plan).startswith(short(plain.plan) + " of ")


def with_recompute(example: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    stated = {name: value for name, value in example["plan"].items() if name != "recompute"}
    return example | {"plan": stated | plan}
