"""What the reference trainer does not run is refused by the field at fault, before torch is touched."""

from typing import Any

import pytest

from testbed.plan import checked_plan
from tools.errors import InputError
from tools.scenario import parse_scenario

Json = dict[str, Any]

MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
ZERO_BUBBLE = {"pp": 2, "vpp": 2, "schedule": "zero_bubble"}


def fsdp(ranks: int) -> Json:
    return {"dp": ranks, "dp_shard": ranks, "zero_stage": 3}


def scenario(ranks: int, model: Json, plan: Json, training: Json) -> Json:
    return {
        "model": {
            "num_hidden_layers": 4,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "vocab_size": 64,
            **model,
        },
        "cluster": {"device": "cpu", "num_devices": ranks},
        "training": {
            "seq_len": 16,
            "global_batch_size": 8,
            "precision": "fp32",
            "framework": "torch-fsdp2",
            **training,
        },
        "plan": {
            "tp": 1,
            "pp": 1,
            "cp": 1,
            "ep": 1,
            "dp": 1,
            "dp_shard": 1,
            "zero_stage": 0,
            "micro_batch_size": 1,
            **plan,
        },
    }


@pytest.mark.parametrize(
    ("field", "ranks", "model", "plan", "training"),
    [
        ("training.framework", 1, {}, {}, {"framework": "megatron-core"}),
        ("training.precision", 1, {}, {}, {"precision": "fp16"}),
        ("model.kv_lora_rank", 1, MLA, {}, {}),
        ("model.sliding_window", 1, {"sliding_window": 8}, {}, {}),
        ("model.num_nextn_predict_layers", 1, {"num_nextn_predict_layers": 1}, {}, {}),
        ("model.head_dim", 1, {"head_dim": 7}, {}, {}),
        ("model.tie_word_embeddings", 2, {"tie_word_embeddings": True}, {"pp": 2}, {}),
        ("plan.tp", 2, {"vocab_size": 65}, {"tp": 2}, {}),
        ("plan.tp", 2, {"intermediate_size": 65}, {"tp": 2}, {}),
        ("plan.cp", 2, {}, {"cp": 2}, {"seq_len": 14}),
        ("plan.etp", 2, MOE, {"tp": 2, "etp": 2, "sequence_parallel": True}, {}),
        ("plan.sequence_parallel", 2, MOE, {"tp": 2, "sequence_parallel": False}, {}),
        ("plan.ep", 6, MOE, fsdp(3) | {"dp": 6, "ep": 2}, {"global_batch_size": 6}),
        ("plan.recompute", 2, MOE, fsdp(2) | {"ep": 2, "recompute": "selective"}, {}),
        ("plan.dp_shard", 4, {}, fsdp(2) | ZERO_BUBBLE, {}),
        ("plan.recompute", 2, {}, ZERO_BUBBLE | {"recompute": "selective"}, {}),
    ],
)
def test_the_field_at_fault_is_named(field: str, ranks: int, model: Json, plan: Json, training: Json) -> None:
    parsed = parse_scenario(scenario(ranks, model, plan, training))
    with pytest.raises(InputError) as refused:
        checked_plan(parsed)
    assert refused.value.field == field


def test_a_scenario_without_a_plan_is_refused() -> None:
    given = scenario(1, {}, {}, {})
    del given["plan"]
    with pytest.raises(InputError, match="plan"):
        checked_plan(parse_scenario(given, need_plan=False))


def test_recomputation_that_is_not_stated_is_none() -> None:
    assert checked_plan(parse_scenario(scenario(1, {}, {"recompute": None}, {}))).recompute == "none"


def test_experts_wider_than_a_shard_group_are_run() -> None:
    plan = {"dp": 4, "ep": 4, "dp_shard": 2, "zero_stage": 3}
    assert checked_plan(parse_scenario(scenario(4, MOE, plan, {}))).ep == 4
