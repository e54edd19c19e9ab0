"""Conditions like those of `checks.py` that take numbers or names (`values`) from the data files: rules of
frameworks, and what practitioners run. A plan that breaks practice is legal, and left out of the search
unless the user asks for it.
"""

import math

import numpy as np

from tools.hardware import Device, get_device
from tools.scenario.columns import BoolArray, Facts, IntArray, divides, encode_value, equals, has_schedule
from tools.scenario.spec import ClusterSpec

Values = tuple[int | str, ...]


def one_of(facts: Facts, field: str, values: Values) -> BoolArray:
    """The field of the plan is one of the values."""
    name = _name(field)
    return ~np.isin(getattr(facts.plan, name), [encode_value(name, value) for value in values])


def chunks_have_layers(facts: Facts, field: str, values: Values) -> BoolArray:
    """At least one layer per chunk, except for as many chunks as the value says."""
    return facts.plan.pp * facts.plan.vpp > facts.model.num_hidden_layers + int(values[0])


def chunks_are_even_with_slots(facts: Facts, field: str, values: Values) -> BoolArray:
    """Interleaved chunks are equal when embedding, loss and MTP may count as that many layers."""
    missing: IntArray = np.mod(-facts.model.num_hidden_layers, facts.plan.pp * facts.plan.vpp)
    return (facts.plan.vpp > 1) & (missing > int(values[0]))


def batches_fill_1f1b(facts: Facts, field: str, values: Values) -> BoolArray:
    """1F1B fills every stage before its first backward, except for as many stages as the value says."""
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


def scale_up_size(cluster: ClusterSpec, device: Device) -> int:
    """Devices that fast links join: the node, or a larger domain where the device has one."""
    if cluster.topology and cluster.topology.nvlink_domain_size:
        return cluster.topology.nvlink_domain_size
    if cluster.topology and cluster.topology.torus_dimensions:
        return math.prod(cluster.topology.torus_dimensions)
    beyond_node = device.fast_domain_devices > device.devices_per_node
    return (
        device.fast_domain_devices
        if beyond_node
        else min(device.fast_domain_devices, cluster.devices_per_node)
    )


def inside_fast_domain(facts: Facts, field: str, values: Values) -> BoolArray:
    """The degree does not leave the devices that fast links join."""
    cluster = facts.cluster
    domain = scale_up_size(cluster, get_device(cluster.device, cluster.overrides))
    return np.asarray(getattr(facts.plan, _name(field)) > domain)


def is_power_of_two(facts: Facts, field: str, values: Values) -> BoolArray:
    number = getattr(facts.plan, _name(field))
    return ~equals(number & (number - 1), 0)


def at_most(facts: Facts, field: str, values: Values) -> BoolArray:
    return np.asarray(getattr(facts.plan, _name(field)) > int(values[0]))


def long_sequences_only(facts: Facts, field: str, values: Values) -> BoolArray:
    """A degree above 1 needs a sequence longer than the value."""
    is_long = facts.training.seq_len > int(values[0])
    return np.asarray((getattr(facts.plan, _name(field)) > 1) & (not is_long))


def stage_is(facts: Facts, field: str, values: Values) -> BoolArray:
    """Several data ranks shard at one of these ZeRO stages (0: not at all)."""
    return (facts.plan.data_ranks > 1) & ~np.isin(facts.plan.sharding_stage, values)


def piped_one_of(facts: Facts, field: str, values: Values) -> BoolArray:
    """With a pipeline the field is one of the values."""
    return (facts.plan.pp > 1) & one_of(facts, field, values)


def shards_over_all(facts: Facts, field: str, values: Values) -> BoolArray:
    return facts.plan.is_hybrid_sharded


def _name(field: str) -> str:
    return field.removeprefix("plan.")
