"""What practitioners run, as conditions like those of `checks.py`: a plan that breaks one is legal, and left
out of the search unless the user asks for it. Values, reasons and sources are data in `kb_seed/frameworks/`.
"""

import math

import numpy as np

from tools.hardware import Device, get_device
from tools.scenario.columns import BoolArray, Facts, equals
from tools.scenario.limits import Values, one_of
from tools.scenario.spec import ClusterSpec


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
    """Where there are several data ranks, they shard at one of these ZeRO stages (0: not at all)."""
    return (facts.plan.data_ranks > 1) & ~np.isin(facts.plan.sharding_stage, values)


def piped_one_of(facts: Facts, field: str, values: Values) -> BoolArray:
    """With a pipeline the field is one of the values."""
    return (facts.plan.pp > 1) & one_of(facts, field, values)


def shards_over_all(facts: Facts, field: str, values: Values) -> BoolArray:
    return facts.plan.is_hybrid_sharded


def _name(field: str) -> str:
    return field.removeprefix("plan.")
