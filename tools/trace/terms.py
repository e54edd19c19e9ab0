"""A measured step in the terms of a prediction's `breakdown_s`, as far as a trace can tell them apart.

Means over ranks and steady steps; the terms add up to the step. `compute` is matrix products and attention,
whatever bounds them, because the cost model counts so. Waiting for late ranks is taken out of communication
and stands in `host_and_other`, where the model has it. Stage-to-stage transfer and bubble look the same in
a trace: both are `pipeline`. Without `Optimizer.step` marks the optimizer is part of `memory_bound_ops`.
"""

from collections import defaultdict
from dataclasses import dataclass

from tools.scenario import Plan
from tools.trace.axes import OTHER, find_axis
from tools.trace.breakdown import Breakdown
from tools.trace.collectives import AlignedCollectives
from tools.trace.group_times import GroupTime
from tools.trace.rank_profile import RankProfile
from tools.trace.shares import steady_breakdown

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
