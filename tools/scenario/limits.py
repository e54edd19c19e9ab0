"""Conditions like those of `checks.py` that take numbers or names (`values`) from the data files."""

import numpy as np

from tools.scenario.columns import (
    BoolArray,
    Facts,
    IntArray,
    divides,
    encode_value,
    equals,
    has_schedule,
)

Values = tuple[int | str, ...]


def one_of(facts: Facts, field: str, values: Values) -> BoolArray:
    """The field of the plan is one of the values."""
    name = field.removeprefix("plan.")
    return ~np.isin(getattr(facts.plan, name), [encode_value(name, value) for value in values])


def chunks_have_layers(facts: Facts, field: str, values: Values) -> BoolArray:
    """At least one layer a chunk, but for as many chunks as the value says."""
    return facts.plan.pp * facts.plan.vpp > facts.model.num_hidden_layers + int(values[0])


def chunks_are_even_with_slots(facts: Facts, field: str, values: Values) -> BoolArray:
    """Interleaved chunks are equal when embedding, loss and MTP may count as that many layers."""
    missing: IntArray = np.mod(-facts.model.num_hidden_layers, facts.plan.pp * facts.plan.vpp)
    return (facts.plan.vpp > 1) & (missing > int(values[0]))


def batches_fill_1f1b(facts: Facts, field: str, values: Values) -> BoolArray:
    """1F1B fills every stage before its first backward, but for as many stages as the value says."""
    single = has_schedule(facts, "1f1b") & (facts.plan.pp > 1)
    return single & (facts.micro_batches < facts.plan.pp - int(values[0]))


def cp_divides_sequence(facts: Facts, field: str, values: Values) -> BoolArray:
    """The value is how many pieces a rank takes: 2 if the causal triangle is balanced in zigzag."""
    return (facts.plan.cp > 1) & ~divides(int(values[0]) * facts.plan.cp, facts.training.seq_len)


def hybrid_needs_stage(facts: Facts, field: str, values: Values) -> BoolArray:
    """Sharding over a part of the data ranks is legal only at these ZeRO stages."""
    plan = facts.plan
    hybrid = plan.is_hybrid_sharded & ~equals(plan.dp_shard, plan.dp)
    return hybrid & ~np.isin(plan.sharding_stage, values)


def piped_stage_is(facts: Facts, field: str, values: Values) -> BoolArray:
    """With a pipeline only these ZeRO stages are legal."""
    return (facts.plan.pp > 1) & (facts.plan.dp_shard > 1) & one_of(facts, field, values)


def expert_parallel_stage_is(facts: Facts, field: str, values: Values) -> BoolArray:
    """With expert parallelism only these ZeRO stages are legal; experts in one place are layers like any."""
    return one_of(facts, field, values) & (facts.plan.ep > 1)
