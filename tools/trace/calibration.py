"""What a trace measures of its cluster: link bandwidths, and which products show its arithmetic rate.

Only extraction: `coefficients.py` makes constants of the cost model from it. Small matrix products and small
messages are left out, because latency and tile padding are modelled apart.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tools.hardware import Device
from tools.trace.collectives import AlignedCollectives, align, bus_factor
from tools.trace.op_names import GEMM_OPS
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint

_LARGE_PRODUCT_S = 3e-6
"""At the device's peak: a product of 780 × 780 × 780 on an A100."""
_LARGE_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True)
class ClusterMeasurements:
    """None where the trace has nothing to measure."""

    intra_node_bytes_per_s: float | None = None
    """Bus bandwidth of large collectives inside the fast domain: the median, waiting left out."""
    inter_node_bytes_per_s: float | None = None
    """Of one device's share of the network, from collectives that cross domains."""
    num_collectives: int = 0


def measure_cluster(
    profiles: list[RankProfile], device: Device, domain_devices: int | None = None
) -> ClusterMeasurements:
    """The figures of all ranks together; `domain_devices` are joined by fast links (a node's when None)."""
    inside, across = _link_samples(align(profiles), domain_devices or device.devices_per_node)
    return ClusterMeasurements(
        intra_node_bytes_per_s=_median(inside),
        inter_node_bytes_per_s=_median(across),
        num_collectives=len(inside) + len(across),
    )


def large_products(points: Iterable[RoofPoint], device: Device, precision: str) -> list[RoofPoint]:
    """Single products in one precision, long enough and intense enough to show the arithmetic rate."""
    peak = device.peak_flops.get(precision)
    if not peak:
        return []
    ridge = peak / device.memory_bandwidth_bytes_per_s
    return [
        point
        for point in points
        if point.op in GEMM_OPS
        and point.precision == precision
        and point.flops >= peak * _LARGE_PRODUCT_S
        and point.intensity >= ridge
    ]


def _link_samples(aligned: list[AlignedCollectives], domain: int) -> tuple[list[float], list[float]]:
    """Bandwidths inside a domain and across; only synchronising collectives show their transfer."""
    inside: list[float] = []
    across: list[float] = []
    for one in aligned:
        if not one.is_synchronising or not one.group_size or one.group_size < 2:
            continue
        share = _network_share(one.events[0][0].ranks or tuple(one.ranks), domain)
        bus = bus_factor(one.kind, one.group_size)
        samples, factor = (inside, bus) if share is None else (across, bus * share)
        for event, transfer_ns in zip(one.events[0], one.transfer_ns.tolist(), strict=True):
            if event.message_bytes and event.message_bytes >= _LARGE_MESSAGE_BYTES and transfer_ns > 0:
                samples.append(event.message_bytes * factor / (transfer_ns * 1e-9))
    return inside, across


def _network_share(ranks: tuple[int, ...], domain: int) -> float | None:
    """Bytes on one network card over those on the bus; None when the group stays inside a domain.

    A hierarchical ring sends (d-1)/d of the message between d domains, over the cards of all members of a
    domain side by side, where a flat one sends (n-1)/n (as `tools.cost.collectives` reckons it).
    """
    per_domain = np.unique([rank // domain for rank in ranks], return_counts=True)[1]
    if len(per_domain) == 1:
        return None
    size, domains = len(ranks), len(per_domain)
    return (domains - 1) / domains * size / (size - 1) / float(per_domain.max())


def _median(samples: list[float]) -> float | None:
    return float(np.median(samples)) if samples else None
