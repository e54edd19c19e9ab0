"""What a trace measures in the cost model's terms: parts of the step by parallel axis, link bandwidths,
products.

Means over ranks and steady steps; the terms add up to the step.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tools.hardware import Device
from tools.scenario import Plan
from tools.trace.breakdown import Breakdown
from tools.trace.classify import GEMM_OPS
from tools.trace.collectives import AlignedCollectives, align, bus_factor
from tools.trace.diagnosis import steady_breakdown
from tools.trace.rank_collectives import GroupTime
from tools.trace.rank_profile import RankProfile
from tools.trace.roofline import RoofPoint

OTHER = "other"
_DESCRIBED = (
    # Data first: Megatron has "data parallel with context parallel" and "expert data parallel" groups.
    ("dp", re.compile(r"data|fsdp|ddp|shard|replicate|optimizer|(^|_)dp(_|$)", re.IGNORECASE)),
    ("pp", re.compile(r"pipe|(^|_)pp(_|$)", re.IGNORECASE)),
    ("cp", re.compile(r"context|(^|_)cp(_|$)", re.IGNORECASE)),
    ("tp", re.compile(r"tensor|(^|_)tp(_|$)", re.IGNORECASE)),
    ("ep", re.compile(r"expert|(^|_)ep(_|$)", re.IGNORECASE)),
)


def find_axis(one: GroupTime, description: str, plan: Plan) -> str:
    """`tp`, `cp`, `ep`, `dp` or `pp`; `other` when nothing tells."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    used = [axis for axis, size in sizes.items() if size > 1]
    if len(used) == 1 and plan.ep == 1:
        return used[0]
    described = next((axis for axis, pattern in _DESCRIBED if pattern.search(description)), None)
    return described or _by_kind(one.kind, plan) or _by_ranks(one.ranks, plan) or OTHER


def _by_kind(kind: str, plan: Plan) -> str | None:
    if kind == "send_recv" and (plan.pp > 1) != (plan.cp > 1):
        return "pp" if plan.pp > 1 else "cp"
    if kind == "all_to_all" and (plan.ep > 1) != (plan.cp > 1):
        return "ep" if plan.ep > 1 else "cp"
    return None


def _by_ranks(ranks: tuple[int, ...] | None, plan: Plan) -> str | None:
    """The axis whose groups have this many ranks so far apart."""
    if ranks is None or len(ranks) < 2:
        return None
    strides = {after - before for before, after in pairwise(ranks)}
    if len(strides) > 1:
        return None
    layout = (len(ranks), strides.pop())
    above = plan.tp * plan.cp
    layouts = {
        "tp": (plan.tp, 1),
        "cp": (plan.cp, plan.tp),
        "dp": (plan.dp, above),
        "pp": (plan.pp, above * plan.dp),
        "ep": (plan.ep, plan.etp),
    }
    found = [axis for axis, expected in layouts.items() if layout == expected]
    if not found and layout in ((plan.dp * plan.cp, plan.tp), (plan.dp_shard, above)):
        found = ["dp"]
    return found[0] if len(found) == 1 else None


PIPELINE, HOST = "pipeline", "host_and_other"
_TERM_OF_AXIS = {
    **{axis: f"{axis}_comm_exposed" for axis in ("tp", "cp", "ep", "dp", OTHER)},
    "pp": PIPELINE,
}
_UNTOLD = GroupTime("other", "", None, None, 0, 1)
"""Stands for all communication of a rank whose collectives are not listed."""


@dataclass(frozen=True)
class MeasuredTerms:
    """Seconds of one step, or of the whole trace when `num_steps` is 0."""

    terms_s: dict[str, float]
    waiting_s: float
    """Part of `host_and_other`: at collectives, for late ranks."""
    num_steps: int

    @property
    def step_time_s(self) -> float:
        return sum(self.terms_s.values())


def measure_terms(
    profiles: list[RankProfile], aligned: list[AlignedCollectives], plan: Plan
) -> MeasuredTerms:
    """The mean over ranks and steady steps."""
    num_steps = min((len(one.steady_steps) for one in profiles), default=0)
    terms_ns: dict[str, float] = defaultdict(float)
    waiting_ratio = _waiting_ratios(aligned)
    waiting_ns = 0.0
    for one in profiles:
        whole = steady_breakdown(one) if num_steps else one.breakdown
        count = (len(one.steady_steps) if num_steps else 1) * len(profiles)
        for name, ns in _own_terms(one, whole).items():
            terms_ns[name] += ns / count
        for name, ns, waiting in _communication(one, whole, plan, waiting_ratio):
            terms_ns[name] += (ns - waiting) / count
            waiting_ns += waiting / count
    terms_ns[HOST] += waiting_ns
    return MeasuredTerms({name: ns * 1e-9 for name, ns in terms_ns.items()}, waiting_ns * 1e-9, num_steps)


def _own_terms(profile: RankProfile, whole: Breakdown) -> dict[str, float]:
    """Everything but communication, in nanoseconds."""
    kernels = max(profile.matrix_kernel_ns + profile.other_kernel_ns, 1)
    per_kernel = whole.compute_ns / kernels
    optimizer = min(profile.optimizer_kernel_ns or 0, profile.other_kernel_ns)
    terms = {
        "compute": profile.matrix_kernel_ns * per_kernel,
        "memory_bound_ops": (profile.other_kernel_ns - optimizer) * per_kernel + whole.memory_ns,
        HOST: float(whole.idle_ns),
    }
    return terms if profile.optimizer_kernel_ns is None else {**terms, "optimizer": optimizer * per_kernel}


def _communication(
    profile: RankProfile, whole: Breakdown, plan: Plan, waiting_ratio: dict[tuple[str, str, int], float]
) -> list[tuple[str, float, float]]:
    """Term, exposed nanoseconds, and the part of them spent on waiting."""
    groups = [one for one in profile.group_times if one.exposed_ns] or [_UNTOLD]
    all_ns = sum(one.exposed_ns for one in groups)
    found = []
    for one in groups:
        description = profile.group_descriptions.get(one.group or "", "")
        ns = whole.exposed_communication_ns * one.exposed_ns / all_ns
        waiting = ns * waiting_ratio.get((one.kind, one.group_key, profile.rank), 0.0)
        found.append((_TERM_OF_AXIS[find_axis(one, description, plan)], ns, waiting))
    return found


def _waiting_ratios(aligned: list[AlignedCollectives]) -> dict[tuple[str, str, int], float]:
    """Share of the time in collectives of a kind and group that each rank spends on waiting."""
    ratios = {}
    for one in aligned:
        if one.waiting_ns is None:
            continue
        time_ns, waiting_ns = one.duration_ns.sum(axis=1), one.waiting_ns.sum(axis=1)
        for rank, time, waiting in zip(one.ranks, time_ns.tolist(), waiting_ns.tolist(), strict=True):
            ratios[one.kind, one.group, rank] = waiting / max(time, 1)
    return ratios


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
