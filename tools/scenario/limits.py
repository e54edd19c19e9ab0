"""Conditions like those of `checks.py` that take numbers or names (`values`) from the data files: rules of
frameworks, and what practitioners run. A plan that breaks practice is legal, and left out of the search
unless the user asks for it.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

from tools.hardware import Device, get_device
from tools.scenario.columns import BoolArray, IntArray, PlanFacts, divides, encode_value, equals, has_schedule
from tools.scenario.spec import ClusterSpec

Values = tuple[int | str, ...]


def scale_up_size(cluster: ClusterSpec, device: Device) -> int:
    """Devices that fast links join: the node, or a larger domain where the device has one."""
    if cluster.topology and cluster.topology.nvlink_domain_size:
        return cluster.topology.nvlink_domain_size
    if cluster.topology and cluster.topology.torus_dimensions:
        return math.prod(cluster.topology.torus_dimensions)
    domain = device.fast_domain_devices
    return domain if domain > device.devices_per_node else min(domain, cluster.devices_per_node)


def _one_of(f: PlanFacts, name: str, values: Values) -> BoolArray:
    return ~np.isin(getattr(f.plan, name), [encode_value(name, value) for value in values])


def _chunks_are_even_with_slots(f: PlanFacts, name: str, values: Values) -> BoolArray:
    """Interleaved chunks are equal when embedding, loss and MTP may count as that many layers."""
    missing: IntArray = np.mod(-f.model.num_hidden_layers, f.plan.pp * f.plan.vpp)
    return (f.plan.vpp > 1) & (missing > int(values[0]))


def _chunks_are_derived(f: PlanFacts, name: str, values: Values) -> BoolArray:
    """The number of chunks follows from a number of layers per chunk, embedding and loss counted as that many
    layers each, or as none."""
    chunks, is_derived = f.plan.pp * f.plan.vpp, equals(f.plan.pp, 1)
    for counted in (int(values[0]), 0):
        slots = f.model.num_hidden_layers + 2 * counted
        gives = equals(-(-slots // -(-slots // chunks)), chunks)
        is_derived = is_derived | (gives & (slots // chunks >= counted))
    return ~is_derived


def _batches_fill_1f1b(f: PlanFacts, name: str, values: Values) -> BoolArray:
    """1F1B fills every stage before its first backward, except for as many stages as the value says."""
    single = has_schedule(f, "1f1b") & (f.plan.pp > 1)
    return single & (f.micro_batches < f.plan.pp - int(values[0]))


def _hybrid_needs_stage(f: PlanFacts, name: str, values: Values) -> BoolArray:
    """Sharding over a part of the data ranks is legal only at these ZeRO stages."""
    hybrid = f.plan.is_hybrid_sharded & ~equals(f.plan.dp_shard, f.plan.dp)
    return hybrid & ~np.isin(f.plan.sharding_stage, values)


def _inside_fast_domain(f: PlanFacts, name: str, values: Values) -> BoolArray:
    """The degree does not leave the devices that fast links join."""
    domain = scale_up_size(f.cluster, get_device(f.cluster.device, f.cluster.overrides))
    return np.asarray(getattr(f.plan, name) > domain)


def _is_power_of_two(f: PlanFacts, name: str, values: Values) -> BoolArray:
    number = getattr(f.plan, name)
    return ~equals(number & (number - 1), 0)


LIMITS: Mapping[str, Callable[[PlanFacts, str, Values], BoolArray]] = {
    "one_of": _one_of,
    "piped_one_of": lambda f, name, values: (f.plan.pp > 1) & _one_of(f, name, values),
    "piped_stage_is": lambda f, name, values: (
        (f.plan.pp > 1) & (f.plan.dp_shard > 1) & _one_of(f, name, values)
    ),
    # Experts in one place are layers like any.
    "expert_parallel_stage_is": lambda f, name, values: _one_of(f, name, values) & (f.plan.ep > 1),
    # At least one layer per chunk, except for as many chunks as the value says.
    "chunks_have_layers": lambda f, _, values: (
        f.plan.pp * f.plan.vpp > f.model.num_hidden_layers + int(values[0])
    ),
    "chunks_are_even_with_slots": _chunks_are_even_with_slots,
    "chunks_are_derived": _chunks_are_derived,
    "batches_fill_1f1b": _batches_fill_1f1b,
    # The value is how many pieces a rank takes: 2 if the causal triangle is balanced in zigzag.
    "cp_divides_sequence": lambda f, _, values: (
        (f.plan.cp > 1) & ~divides(int(values[0]) * f.plan.cp, f.training.seq_len)
    ),
    "hybrid_needs_stage": _hybrid_needs_stage,
    "inside_fast_domain": _inside_fast_domain,
    "is_power_of_two": _is_power_of_two,
    "at_most": lambda f, name, values: np.asarray(getattr(f.plan, name) > int(values[0])),
    # A degree above 1 needs a sequence longer than the value.
    "long_sequences_only": lambda f, name, values: np.asarray(
        (getattr(f.plan, name) > 1) & (f.training.seq_len <= int(values[0]))
    ),
    "mixer_is": lambda f, _, values: np.asarray(
        f.model.mixer is not None and f.model.mixer.kind not in values
    ),
    # Several data ranks shard at one of these ZeRO stages (0: not at all).
    "stage_is": lambda f, _, values: (f.plan.data_ranks > 1) & ~np.isin(f.plan.sharding_stage, values),
}
