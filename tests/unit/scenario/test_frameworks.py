"""What a plan does not state is what the framework does by default."""

from typing import Any

import pytest

from tools.scenario import Plan, StatedPlan, resolve_defaults

STATED = {
    "tp": 2, "pp": 2, "cp": 1, "ep": 1, "dp": 2, "dp_shard": 2, "zero_stage": 1, "micro_batch_size": 1,
}  # fmt: skip
UNSHARDED: dict[str, Any] = {"ep": None, "dp_shard": None, "dp": 4, "cp": 2}
EVERYTHING: dict[str, Any] = STATED | {"vpp": 3, "etp": 2, "sequence_parallel": False, "recompute": "full"}


def resolved(framework: str, **stated: object) -> Plan:
    return resolve_defaults(StatedPlan.model_validate(STATED | stated), framework, num_hidden_layers=80)


@pytest.mark.parametrize(
    ("framework", "stated", "expected"),
    [
        # an unnamed stack interleaves as deep as the layers allow
        ("other", {"pp": 16}, {"vpp": 80 // 16}),
        ("other", {"pp": 1}, {"vpp": 1}),
        ("other", {"vpp": 2}, {"vpp": 2}),
        # sequence parallelism needs tensor ranks
        ("megatron-core", {"tp": 1, "dp": 4}, {"sequence_parallel": False}),
        ("megatron-core", {"tp": 1, "dp": 4, "sequence_parallel": True}, {"sequence_parallel": False}),
        # the schedule follows framework and chunks, and means nothing without a pipeline
        ("megatron-core", {"vpp": 1}, {"schedule": "1f1b"}),
        ("megatron-core", {"vpp": 2}, {"schedule": "interleaved"}),
        ("maxtext", {"vpp": 2}, {"schedule": "gpipe"}),
        ("nanotron", {"vpp": 1}, {"schedule": "gpipe"}),
        ("maxtext", {"pp": 1, "schedule": "1f1b"}, {"schedule": "gpipe"}),
        # a dense model has no experts, and ZeRO shards over all ranks with the same weights
        ("megatron-core", UNSHARDED | {"zero_stage": 0}, {"ep": 1, "dp_shard": 1}),
        ("megatron-core", UNSHARDED | {"zero_stage": 1}, {"ep": 1, "dp_shard": 8}),
        ("megatron-core", UNSHARDED | {"zero_stage": 3}, {"ep": 1, "dp_shard": 8}),
        ("megatron-core", UNSHARDED | {"dp_shard": 2}, {"ep": 1, "dp_shard": 2}),
        # what is stated stays
        ("megatron-core", EVERYTHING, EVERYTHING),
    ],
)
def test_what_is_not_stated_follows_from_the_rest(
    framework: str, stated: dict[str, Any], expected: dict[str, Any]
) -> None:
    plan = resolved(framework, **stated).model_dump()
    assert {name: plan[name] for name in expected} == expected
