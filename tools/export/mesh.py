"""MaxText's mesh: which part of each axis lies inside a slice (ici) and which across slices (dcn).

A slice is what the fast links join: a TPU pod slice, or a GPU node.
"""

import math
from collections.abc import Mapping

from tools.hardware import get_device
from tools.scenario import ClusterSpec

# From the axis that talks most to the one that talks least: the first to be kept inside a slice.
INNERMOST_FIRST = ("tensor", "tensor_sequence", "context", "expert", "fsdp", "data", "pipeline")


def split_axes(sizes: Mapping[str, int], cluster: ClusterSpec) -> tuple[dict[str, int], dict[str, int]]:
    """The sizes inside a slice and across slices.

    A slice divides the devices and the sizes multiply to the devices, so taking the greatest common divisor
    axis by axis fills the slice exactly.
    """
    left = devices_per_slice(cluster)
    inside: dict[str, int] = {}
    for axis in INNERMOST_FIRST:
        inside[axis] = math.gcd(sizes[axis], left)
        left //= inside[axis]
    return inside, {axis: sizes[axis] // inside[axis] for axis in INNERMOST_FIRST}


def devices_per_slice(cluster: ClusterSpec) -> int:
    device = get_device(cluster.device, cluster.overrides)
    largest = device.fast_domain_devices if device.torus_dimensions else cluster.devices_per_node
    return math.gcd(cluster.num_devices, min(largest, cluster.num_devices))
