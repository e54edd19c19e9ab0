"""How long each term of the cost model took: compute, memory-bound work, each parallel axis, host.

Means over ranks and steady steps; the terms add up to the step.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

from tools.scenario import Plan
from tools.trace.alignment import AlignedCollectives
from tools.trace.breakdown import Breakdown
from tools.trace.collectives import GroupTime
from tools.trace.rank_profile import RankProfile

OTHER = "other"
_AXIS_OF_DESCRIPTION = (
    # Data first: Megatron has "data parallel with context parallel" and "expert data parallel" groups.
    ("dp", re.compile(r"data|fsdp|ddp|shard|replicate|optimizer|(^|_)dp(_|$)", re.IGNORECASE)),
    ("pp", re.compile(r"pipe|(^|_)pp(_|$)", re.IGNORECASE)),
    ("cp", re.compile(r"context|(^|_)cp(_|$)", re.IGNORECASE)),
    ("tp", re.compile(r"tensor|(^|_)tp(_|$)", re.IGNORECASE)),
    ("ep", re.compile(r"expert|(^|_)ep(_|$)", re.IGNORECASE)),
)


def find_axis(group: GroupTime, description: str, plan: Plan) -> str:
    """`tp`, `cp`, `ep`, `dp` or `pp`; `other` if nothing identifies it."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    used = [axis for axis, size in sizes.items() if size > 1]
    if len(used) == 1 and plan.ep == 1:
        return used[0]
    return (
        find_described_axis(description)
        or _axis_of_kind(group.kind, plan)
        or _axis_of_ranks(group.ranks, plan)
        or OTHER
    )


def find_described_axis(description: str) -> str | None:
    """By the words of a process group's description."""
    return next((axis for axis, pattern in _AXIS_OF_DESCRIPTION if pattern.search(description)), None)


def _axis_of_kind(kind: str, plan: Plan) -> str | None:
    if kind == "send_recv" and (plan.pp > 1) != (plan.cp > 1):
        return "pp" if plan.pp > 1 else "cp"
    if kind == "all_to_all" and (plan.ep > 1) != (plan.cp > 1):
        return "ep" if plan.ep > 1 else "cp"
    return None


def _axis_of_ranks(ranks: tuple[int, ...] | None, plan: Plan) -> str | None:
    """The axis whose groups have this size and stride."""
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
    axes = [axis for axis, expected in layouts.items() if layout == expected]
    if not axes and layout in ((plan.dp * plan.cp, plan.tp), (plan.dp_shard, above)):
        return "dp"
    return axes[0] if len(axes) == 1 else None


PIPELINE, HOST = "pipeline", "host_and_other"
_TERM_OF_AXIS = {**{axis: f"{axis}_comm_exposed" for axis in ("tp", "cp", "ep", "dp", OTHER)}, "pp": PIPELINE}
_ALL_COMMUNICATION = GroupTime("other", "", None, None, 0, 1)
"""Stands for all communication of a rank whose collectives are not listed."""


@dataclass(frozen=True)
class MeasuredTerms:
    """Seconds of one step, or of the whole trace if `num_steps` is 0."""

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
    num_steps = min((len(profile.steady_steps) for profile in profiles), default=0)
    terms_ns: dict[str, float] = defaultdict(float)
    waiting_ratio = _waiting_ratios(aligned)
    waiting_ns = 0.0
    for profile in profiles:
        whole = profile.steady_breakdown if num_steps else profile.breakdown
        count = (len(profile.steady_steps) if num_steps else 1) * len(profiles)
        for name, ns in _own_terms(profile, whole).items():
            terms_ns[name] += ns / count
        for name, ns, waiting in _communication(profile, whole, plan, waiting_ratio):
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
    groups = [group for group in profile.group_times if group.exposed_ns] or [_ALL_COMMUNICATION]
    all_ns = sum(group.exposed_ns for group in groups)
    times = []
    for group in groups:
        description = profile.group_descriptions.get(group.group or "", "")
        ns = whole.exposed_communication_ns * group.exposed_ns / all_ns
        waiting = ns * waiting_ratio.get((group.kind, group.group_key, profile.rank), 0.0)
        times.append((_TERM_OF_AXIS[find_axis(group, description, plan)], ns, waiting))
    return times


def _waiting_ratios(aligned: list[AlignedCollectives]) -> dict[tuple[str, str, int], float]:
    """By kind, group and rank: the share of the time in collectives that is waiting."""
    ratios = {}
    for group in aligned:
        if group.waiting_ns is None:
            continue
        time_ns, waiting_ns = group.duration_ns.sum(axis=1), group.waiting_ns.sum(axis=1)
        for rank, time, waiting in zip(group.ranks, time_ns.tolist(), waiting_ns.tolist(), strict=True):
            ratios[group.kind, group.group, rank] = waiting / max(time, 1)
    return ratios
