"""What a trace measures of its cluster: the figures that can replace a cost model's defaults.

Only extraction: the model that takes them is elsewhere. Efficiencies are against the catalogue's peaks. Small
matrix products and small messages are left out, because latency and tile padding are modelled apart.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tools.hardware import Device
from tools.trace.collectives import AlignedCollectives, align, bus_factor
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint
from tools.trace.shares import steady_breakdown

_LARGE_FLOPS = 1e9
"""A product of 800 × 800 × 800: a few microseconds on a current accelerator."""
_LARGE_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class ClusterMeasurements:
    """Empty or None where the trace has nothing to measure."""

    gemm_efficiency: dict[str, float] = field(default_factory=dict)
    """By precision: share of the peak that large products reach, weighted by their time."""
    gemm_time_s: dict[str, float] = field(default_factory=dict)
    """How much kernel time stands behind each efficiency."""
    intra_node_bytes_per_s: float | None = None
    inter_node_bytes_per_s: float | None = None
    """Bus bandwidth of large collectives: the median over collectives, waiting left out."""
    num_collectives: int = 0
    overlap_ratio: float | None = None
    """Share of communication hidden under compute in steady steps."""


def measure_cluster(profiles: list[RankProfile], device: Device) -> ClusterMeasurements:
    """The figures of all ranks together."""
    efficiency, time_s = _gemm_efficiency(point for one in profiles for point in one.roofline)
    inside, across = _link_samples(align(profiles), device.devices_per_node)
    return ClusterMeasurements(
        gemm_efficiency=efficiency,
        gemm_time_s=time_s,
        intra_node_bytes_per_s=_median(inside),
        inter_node_bytes_per_s=_median(across),
        num_collectives=len(inside) + len(across),
        overlap_ratio=_overlap_ratio(profiles),
    )


def _gemm_efficiency(points: Iterable[RoofPoint]) -> tuple[dict[str, float], dict[str, float]]:
    work: dict[str, float] = defaultdict(float)
    time_s: dict[str, float] = defaultdict(float)
    for point in points:
        if point.bound == "compute" and point.flops >= _LARGE_FLOPS and point.peak_flops_per_s:
            work[point.precision] += point.flops * point.count / point.peak_flops_per_s
            time_s[point.precision] += point.time_ns * 1e-9
    return {name: work[name] / time_s[name] for name in work}, dict(time_s)


def _link_samples(
    aligned: list[AlignedCollectives], devices_per_node: int
) -> tuple[list[float], list[float]]:
    """Bandwidths inside a node and across nodes; only synchronising collectives show their transfer."""
    inside: list[float] = []
    across: list[float] = []
    for one in aligned:
        if not one.is_synchronising or not one.group_size or one.group_size < 2:
            continue
        ranks = one.events[0][0].ranks or tuple(one.ranks)
        nodes = {rank // devices_per_node for rank in ranks}
        samples = inside if len(nodes) == 1 else across
        factor = bus_factor(one.kind, one.group_size)
        for event, transfer_ns in zip(one.events[0], one.transfer_ns.tolist(), strict=True):
            if event.message_bytes and event.message_bytes >= _LARGE_MESSAGE_BYTES and transfer_ns > 0:
                samples.append(event.message_bytes * factor / (transfer_ns * 1e-9))
    return inside, across


def _median(samples: list[float]) -> float | None:
    return float(np.median(samples)) if samples else None


def _overlap_ratio(profiles: list[RankProfile]) -> float | None:
    steady = [steady_breakdown(profile) for profile in profiles]
    communication_ns = sum(one.communication_ns for one in steady)
    exposed_ns = sum(one.exposed_communication_ns for one in steady)
    return 1 - exposed_ns / communication_ns if communication_ns else None
