"""Plans of the reference trainer: what it does not run is refused by field; how layers become chunks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import checked_plan, chunk_specs, expert_shards, is_sharded
from tests.unit.testbed.scenarios import MODEL, MOE, ONE_RANK, Json, fsdp, scenario
from tools.errors import InputError
from tools.scenario import ModelSpec, Plan, parse_scenario

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
    assert refused.value.field == field


def test_a_scenario_without_a_plan_is_refused() -> None:
    without = {name: part for name, part in scenario().items() if name != "plan"}
    with pytest.raises(InputError, match="plan"):
        checked_plan(parse_scenario(without, need_plan=False))


def test_unstated_recomputation_is_none_and_experts_wider_than_a_shard_group_are_run() -> None:
    assert checked_plan(parse_scenario(scenario(plan={"recompute": None}))).recompute == "none"
    assert checked_plan(parse_scenario(scenario(4, fsdp(4, ep=4) | {"dp_shard": 2}, MOE))).ep == 4


@given(layers=st.integers(1, 40), leading=st.integers(0, 5), pp=st.integers(1, 8), vpp=st.integers(1, 4))
def test_every_layer_is_in_one_chunk_in_order(layers: int, leading: int, pp: int, vpp: int) -> None:
    model = ModelSpec(**MODEL | MOE | {"num_hidden_layers": layers, "first_k_dense_replace": leading})
    chunks = chunk_specs(model, plan(pp=pp, vpp=vpp))
    assert [layer for chunk in chunks for layer in chunk.layers] == list(range(layers))
    assert all(chunk.layers[layer] == model.is_moe_layer(layer) for chunk in chunks for layer in chunk.layers)
    sizes = [len(chunk.layers) for chunk in chunks]
    assert max(sizes) - min(sizes) <= 1
    assert [chunk.is_first for chunk in chunks] == [True] + [False] * (pp * vpp - 1)
    assert [chunk.is_last for chunk in chunks] == [False] * (pp * vpp - 1) + [True]


@pytest.mark.parametrize(("dp_shard", "zero_stage", "sharded"), [(1, 3, False), (2, 0, False), (2, 2, True)])
def test_one_rank_or_stage_zero_is_not_sharded(dp_shard: int, zero_stage: int, sharded: bool) -> None:
    assert is_sharded(plan(dp=2, dp_shard=dp_shard, zero_stage=zero_stage)) == sharded


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
