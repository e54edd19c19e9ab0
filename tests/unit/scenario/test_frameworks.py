"""What a plan does not state is what the framework does by default."""

import json
from typing import Any, get_args

import pytest

from tests.unit.scenario.conftest import parsed, parsed_plan
from tools.cost.predict import predict
from tools.recommend.words import short
from tools.scenario import Plan, StatedPlan, get_framework, resolve_defaults
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
    assert plan.sequence_parallel is (framework in ("megatron-core", "torchtitan", "other"))
    assert get_framework(framework).sharding_stage in (0, 1, 2, 3)


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


@pytest.mark.parametrize(
    "detail",
    [
        {"recompute": "full", "recompute_layers": 4},
        {"recompute": "selective", "recompute_modules": ["core_attn", "mlp"]},
    ],
)
def test_how_much_is_recomputed_is_kept_and_not_priced(detail: dict[str, Any]) -> None:
    changes = {f"plan.{name}": value for name, value in detail.items()}
    plain = {"plan.recompute": detail["recompute"]}
    plan = parsed_plan(changes)
    assert json.loads(plan.model_dump_json()).items() >= detail.items()
    assert Plan.model_validate(plan.model_dump()) == plan
    assert not {"recompute_layers", "recompute_modules"} & parsed_plan(plain).model_dump().keys()
    assert predict([parsed(changes)]) == predict([parsed(plain)])
    assert short(plan).startswith(short(parsed_plan(plain)) + " of ")
