"""How layers are dealt out to pipeline chunks."""

from hypothesis import given
from hypothesis import strategies as st

from testbed.plan import chunk_specs, expert_shards, is_sharded
from tools.scenario import ModelSpec, Plan


def model(layers: int, leading_dense: int) -> ModelSpec:
    return ModelSpec(
        num_hidden_layers=layers,
        hidden_size=8,
        intermediate_size=8,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=8,
        num_experts=2,
        num_experts_per_tok=1,
        moe_intermediate_size=8,
        first_k_dense_replace=leading_dense,
    )


def plan(**degrees: int) -> Plan:
    ones = dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_shard", "micro_batch_size"), 1)
    choices = {"zero_stage": 0, "sequence_parallel": False, "recompute": "none", "schedule": "1f1b"}
    return Plan.model_validate({**ones, **choices, **degrees})


@given(layers=st.integers(1, 40), leading=st.integers(0, 5), pp=st.integers(1, 8), vpp=st.integers(1, 4))
def test_every_layer_stands_in_one_chunk_in_order(layers: int, leading: int, pp: int, vpp: int) -> None:
    spec = model(layers, leading)
    chunks = chunk_specs(spec, plan(pp=pp, vpp=vpp))
    assert [layer for chunk in chunks for layer in chunk.layers] == list(range(layers))
    assert all(chunk.layers[layer] == spec.is_moe_layer(layer) for chunk in chunks for layer in chunk.layers)
    sizes = [len(chunk.layers) for chunk in chunks]
    assert max(sizes) - min(sizes) <= 1
    assert [chunk.is_first for chunk in chunks] == [True] + [False] * (pp * vpp - 1)
    assert [chunk.is_last for chunk in chunks] == [False] * (pp * vpp - 1) + [True]


def test_one_rank_or_stage_zero_is_not_sharded() -> None:
    assert not is_sharded(plan(dp=2, dp_shard=1, zero_stage=3))
    assert not is_sharded(plan(dp=2, dp_shard=2, zero_stage=0))
    assert is_sharded(plan(dp=2, dp_shard=2, zero_stage=2))


def test_experts_are_sharded_over_the_copies_of_one_shard_group() -> None:
    assert expert_shards(plan(dp=8, dp_shard=4, zero_stage=3, ep=2)) == 2
    assert expert_shards(plan(dp=8, dp_shard=4, zero_stage=3, ep=8)) == 1
    assert expert_shards(plan(dp=4, tp=2, dp_shard=4, zero_stage=3, ep=2)) == 4
    assert expert_shards(plan(dp=8, dp_shard=4, zero_stage=0, ep=2)) == 1
