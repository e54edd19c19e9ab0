"""Plans of the reference trainer: what it does not run is refused by field; how layers become chunks."""

import pytest

from testbed.plan import checked_plan, expert_shards
from tests.unit.testbed.scenarios import MOE, ONE_RANK, Json, fsdp, scenario
from tools.errors import InputError
from tools.scenario import Plan, parse_scenario

MLA = {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
ZERO_BUBBLE = {"pp": 2, "vpp": 2, "schedule": "zero_bubble"}


def plan(**degrees: int) -> Plan:
    return Plan.model_validate(ONE_RANK | {"etp": 1, "schedule": "1f1b"} | degrees)


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
        ("plan.sequence_parallel", 2, MOE, {"tp": 2}, {}),
        ("plan.ep", 6, MOE, fsdp(3) | {"dp": 6, "ep": 2}, {"global_batch_size": 6}),
        ("plan.recompute", 2, MOE, fsdp(2, ep=2, recompute="selective"), {}),
        ("plan.dp_shard", 4, {}, fsdp(2) | ZERO_BUBBLE, {}),
        ("plan.recompute", 2, {}, ZERO_BUBBLE | {"recompute": "selective"}, {}),
    ],
)
def test_what_is_not_run_names_the_field_at_fault(
    field: str, ranks: int, model: Json, plan: Json, training: Json
) -> None:
    parsed = parse_scenario(scenario(ranks, plan, model, **training))
    with pytest.raises(InputError) as refused:
        checked_plan(parsed)
    assert refused.value.path == field


@pytest.mark.parametrize(
    ("degrees", "shards"),
    [
        ({"dp": 8, "zero_stage": 3, "ep": 2}, 2),
        ({"dp": 8, "zero_stage": 3, "ep": 8}, 1),
        ({"dp": 4, "tp": 2, "zero_stage": 3, "ep": 2}, 4),
        ({"dp": 8, "zero_stage": 0, "ep": 2}, 1),
    ],
)
def test_experts_are_sharded_over_the_copies_of_one_shard_group(degrees: dict[str, int], shards: int) -> None:
    assert expert_shards(plan(dp_shard=4, **degrees)) == shards
