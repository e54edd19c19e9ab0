"""How long each term of the cost model took: compute, memory-bound work, each parallel axis, host.

Means over ranks and steady steps; the terms add up to the step.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tools.scenario import Plan
from tools.trace.alignment import AlignedCollectives
from tools.trace.collectives import GroupTime
from tools.trace.rank_profile import RankProfile

OTHER, PIPELINE, HOST = "other", "pipeline", "host_and_other"
_AXIS_OF_DESCRIPTION = (
    # Data first: Megatron has "data parallel with context parallel" and "expert data parallel" groups.
    ("dp", re.compile(r"data|fsdp|ddp|shard|replicate|optimizer|(^|_)dp(_|$)", re.IGNORECASE)),
    ("pp", re.compile(r"pipe|(^|_)pp(_|$)", re.IGNORECASE)),
    ("cp", re.compile(r"context|(^|_)cp(_|$)", re.IGNORECASE)),
    ("tp", re.compile(r"tensor|(^|_)tp(_|$)", re.IGNORECASE)),
    ("ep", re.compile(r"expert|(^|_)ep(_|$)", re.IGNORECASE)),
)
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
    profiles: Sequence[RankProfile], aligned: Sequence[AlignedCollectives], plan: Plan
) -> MeasuredTerms:
    """The mean over ranks and steady steps."""
    num_steps = min((len(profile.steady_steps) for profile in profiles), default=0)
    waiting_ratios = {(group.kind, group.group): group.waiting_ratios for group in aligned}
    terms_ns: dict[str, float] = defaultdict(float)
    waiting_ns = 0.0
    for profile in profiles:
        whole = profile.steady_breakdown if num_steps else profile.breakdown
        count = (len(profile.steady_steps) if num_steps else 1) * len(profiles)
        per_kernel = whole.compute_ns / max(profile.matrix_kernel_ns + profile.other_kernel_ns, 1)
        optimizer = min(profile.optimizer_kernel_ns or 0, profile.other_kernel_ns)
        other_ns = (profile.other_kernel_ns - optimizer) * per_kernel + whole.memory_ns
        terms_ns["compute"] += profile.matrix_kernel_ns * per_kernel / count
        terms_ns["memory_bound_ops"] += other_ns / count
        terms_ns[HOST] += whole.idle_ns / count
        if profile.optimizer_kernel_ns is not None:
            terms_ns["optimizer"] += optimizer * per_kernel / count
        groups = [group for group in profile.group_times if group.exposed_ns] or [_ALL_COMMUNICATION]
        all_ns = sum(group.exposed_ns for group in groups)
        for group in groups:
            axis = find_axis(group, profile.group_descriptions.get(group.group or "", ""), plan)
            ns = whole.exposed_communication_ns * group.exposed_ns / all_ns
            waiting = ns * waiting_ratios.get((group.kind, group.group_key), {}).get(profile.rank, 0.0)
            terms_ns[PIPELINE if axis == "pp" else f"{axis}_comm_exposed"] += (ns - waiting) / count
            waiting_ns += waiting / count
    terms_ns[HOST] += waiting_ns
    return MeasuredTerms({name: ns * 1e-9 for name, ns in terms_ns.items()}, waiting_ns * 1e-9, num_steps)


def find_axis(group: GroupTime, description: str, plan: Plan) -> str:
    """`tp`, `cp`, `ep`, `dp` or `pp`; `other` if nothing identifies it."""
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp, "pp": plan.pp}
    used = [axis for axis, size in sizes.items() if size > 1]
    if len(used) == 1 and plan.ep == 1:
        return used[0]
    if described := find_described_axis(description):
        return described
    if group.kind == "send_recv" and (plan.pp > 1) != (plan.cp > 1):
        return "pp" if plan.pp > 1 else "cp"
    if group.kind == "all_to_all" and (plan.ep > 1) != (plan.cp > 1):
        return "ep" if plan.ep > 1 else "cp"
    return _axis_of_ranks(group.ranks or (), plan) or OTHER


def find_described_axis(description: str) -> str | None:
    """By the words of a process group's description."""
    return next((axis for axis, pattern in _AXIS_OF_DESCRIPTION if pattern.search(description)), None)


def _axis_of_ranks(ranks: tuple[int, ...], plan: Plan) -> str | None:
    """The axis whose groups have this size and stride."""
    strides = {after - before for before, after in pairwise(ranks)}
    if len(strides) != 1:
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
