"""What a plan does not state is what the framework does by default."""

from typing import Any, get_args

import pytest

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
