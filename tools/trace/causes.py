"""What costs time in a profiled step: causes of a closed list, each with seconds, ranks, evidence and lever.

Rank time is divided once: kernels, copies, transfers by axis, waiting (blamed on the rank that came last and
on what it did before), late launches. What a slow device or a slow link adds is taken from the kernels and
transfers it stretched.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from tools.hardware import Device
from tools.scenario.spec import Result
from tools.trace.alignment import AlignedCollectives
from tools.trace.collectives import GroupTime
from tools.trace.rank_profile import RankProfile
from tools.trace.terms import find_described_axis
from tools.trace.waits import GroupWaits, measure_waits

Cause = Literal[
    "compute",
    "recomputation",
    "memory_bound_kernels",
    "exposed_tp",
    "exposed_cp",
    "exposed_ep",
    "exposed_dp",
    "exposed_pp",
    "slow_link",
    "late_host",
    "slow_device",
    "small_messages",
    "bubble",
    "imbalance",
    "data_loading",
    "trace_mismatch",
]
LEVERS: dict[Cause, str] = {
    "compute": "kernels and precision: raise the rate of the arithmetic",
    "recomputation": "recompute less: free memory by other fields of the plan",
    "memory_bound_kernels": "fused kernels, a larger micro-batch, fewer passes over the same tensors",
    "exposed_tp": "a smaller tensor-parallel degree, or overlapped tensor-parallel communication",
    "exposed_cp": "a smaller context-parallel degree",
    "exposed_ep": "experts inside the fast domain, or overlapped expert communication",
    "exposed_dp": "gradient communication that overlaps with the backward pass, or fewer data-parallel ranks",
    "exposed_pp": "fewer stages, or overlapped point-to-point messages",
    "slow_link": "the link: repair or avoid it before changing the plan",
    "late_host": "the host: launch overhead, CPU pinning, other processes, CUDA graphs; not the plan",
    "slow_device": "the device: check clocks, temperature and power, or replace it; not the plan",
    "small_messages": "fewer and larger messages: bucket gradients, fuse collectives",
    "bubble": "more micro-batches per step, fewer stages, or an interleaved schedule",
    "imbalance": "an even split: layers per stage, sequence lengths, experts",
    "data_loading": "the input pipeline: more loader workers, prefetching, faster storage",
    "trace_mismatch": "traces of the job that the scenario describes, or a scenario of the traced job",
}
PHRASES: dict[Cause, str] = {
    "compute": "computing",
    "recomputation": "recomputation",
    "memory_bound_kernels": "memory-bound kernels and copies",
    "exposed_tp": "exposed tensor-parallel communication",
    "exposed_cp": "exposed context-parallel communication",
    "exposed_ep": "exposed expert-parallel communication",
    "exposed_dp": "exposed data-parallel communication",
    "exposed_pp": "exposed pipeline communication",
    "slow_link": "a slow link",
    "late_host": "a late host",
    "slow_device": "a slow device",
    "small_messages": "small messages",
    "bubble": "the pipeline bubble",
    "imbalance": "uneven work",
    "data_loading": "data loading",
    "trace_mismatch": "the trace does not match the scenario",
}
"""As a sentence names them."""
FAULTS: frozenset[Cause] = frozenset(
    ["late_host", "slow_device", "slow_link", "data_loading", "imbalance", "small_messages"]
)
"""What is wrong with a run, whatever its plan; what the plan itself costs is not."""
MIN_FAULT_SHARE = 0.06
"""Of the step: a fault that costs more comes before what the plan costs."""
MIN_SHARE = 0.01
MIN_RANKS_TO_COMPARE = 3
BLAMED_SHARE = 0.2
"""Of a cause's time: a rank with more of it is named."""


class CauseEvidence(Result):
    """A number with the place in the report that it comes from."""

    ref: str
    value: float
    says: str


class CauseFinding(Result):
    """One cause, what it costs in the mean step of a rank, and what would remove it."""

    cause: Cause
    seconds: float
    share: float
    """Of the step."""
    ranks: list[int]
    """Whom it is due to; empty for all alike."""
    evidence: list[CauseEvidence]
    lever: str
    says: str


@dataclass
class _Cost:
    ns: float = 0.0
    by_rank: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Whom the time is due to."""
    evidence: list[CauseEvidence] = field(default_factory=list)

    def add(self, ns: float, due_to: int | None = None) -> None:
        self.ns += ns
        if due_to is not None:
            self.by_rank[due_to] += ns


def find_causes(
    profiles: Sequence[RankProfile],
    aligned: Sequence[AlignedCollectives],
    device: Device | None = None,
) -> list[CauseFinding]:
    """Faults first, then by their cost; causes below one percent of the step are left out."""
    working = [profile for profile in profiles if profile.breakdown.total_ns]
    total_ns = sum(profile.breakdown.total_ns for profile in working)
    if not total_ns:
        return []
    costs: dict[Cause, _Cost] = defaultdict(_Cost)
    slow = _slow_ranks(working)
    for profile in working:
        _add_kernels(profile, slow.get(profile.rank, 1.0), costs)
        _add_idle(profile, costs)
    _add_communication(working, aligned, device, slow, costs)
    for rank, ratio in slow.items():
        says = f"the same kernels take {ratio:.2f} times as long on rank {rank} as on the others"
        costs["slow_device"].evidence.append(
            CauseEvidence(ref=f"ranks[rank={rank}].top_ops", value=ratio, says=says)
        )
    _count_as_step(
        "slow_device", {rank: _excess_ns(working, rank, ratio) for rank, ratio in slow.items()}, costs
    )
    _count_as_step("late_host", _excess_idle_ns(working), costs)
    step_s = _step_s(working)
    findings = [
        _finding(cause, cost, cost.ns / total_ns, step_s, len(working))
        for cause, cost in costs.items()
        if cost.ns >= MIN_SHARE * total_ns
    ]
    return sorted(findings, key=lambda finding: (not _is_clear_fault(finding), -finding.seconds))


def _excess_ns(profiles: Sequence[RankProfile], rank: int, ratio: float) -> float:
    compute_ns = next(profile.breakdown.compute_ns for profile in profiles if profile.rank == rank)
    return compute_ns * (1 - 1 / ratio) * len(profiles)


def _excess_idle_ns(profiles: Sequence[RankProfile]) -> dict[int, float]:
    """More than the median rank's, if there are enough ranks to say what is usual."""
    usual_ns = float(np.median([profile.breakdown.idle_ns for profile in profiles]))
    return {
        profile.rank: (profile.breakdown.idle_ns - usual_ns) * len(profiles)
        for profile in profiles
        if len(profiles) >= MIN_RANKS_TO_COMPARE
    }


def _count_as_step(cause: Cause, per_rank_ns: dict[int, float], costs: dict[Cause, _Cost]) -> None:
    """A step is as slow as its slowest rank, even if the traces do not show the others waiting for it."""
    if per_rank_ns and max(per_rank_ns.values()) > costs[cause].ns:
        costs[cause].ns = max(per_rank_ns.values())


def _is_clear_fault(finding: CauseFinding) -> bool:
    return finding.cause in FAULTS and finding.share >= MIN_FAULT_SHARE


def _step_s(profiles: Sequence[RankProfile]) -> float:
    """The mean steady step of a rank; the mean trace if no steps are marked."""
    steps = sum(len(profile.steady_steps) or 1 for profile in profiles)
    return sum(profile.steady_breakdown.total_ns for profile in profiles) * 1e-9 / steps


def _finding(cause: Cause, cost: _Cost, share: float, step_s: float, num_ranks: int) -> CauseFinding:
    ranks = _blamed(cost, num_ranks)
    named = f" (rank {' and '.join(map(str, ranks))})" if ranks and cause in FAULTS else ""
    seconds = share * step_s
    says = f"{PHRASES[cause]}{named}: {seconds:.3g} s of the {step_s:.3g} s step ({share:.0%})"
    whole = CauseEvidence(ref=f"diagnosis.causes[cause={cause}]", value=round(share, 4), says=says)
    return CauseFinding(
        cause=cause,
        seconds=seconds,
        share=round(share, 4),
        ranks=ranks if cause in FAULTS else [],
        evidence=[whole, *cost.evidence, *_rank_evidence(cause, cost, share, ranks)],
        lever=LEVERS[cause],
        says=says,
    )


def _rank_evidence(cause: Cause, cost: _Cost, share: float, ranks: Sequence[int]) -> list[CauseEvidence]:
    """How much of all ranks' time each named rank costs, by its own delay and by others' waiting for it."""
    if cause not in FAULTS:
        return []
    parts = {rank: share * cost.by_rank[rank] / cost.ns for rank in ranks}
    return [
        CauseEvidence(
            ref=f"ranks[rank={rank}]",
            value=round(part, 4),
            says=f"rank {rank}: {part:.0%} of all rank time is its own delay or others' waiting for it",
        )
        for rank, part in parts.items()
    ]


def _blamed(cost: _Cost, num_ranks: int) -> list[int]:
    """The ranks that stand out; none if all have about the same."""
    due = sum(cost.by_rank.values())
    if not due:
        return []
    if num_ranks == 1:
        return sorted(cost.by_rank)
    ranks = sorted(
        rank for rank, ns in cost.by_rank.items() if ns >= max(BLAMED_SHARE, 1.5 / num_ranks) * due
    )
    return ranks if len(ranks) < num_ranks else []


_SLOW_RATIO = 1.08
_MIN_SHARED_KERNELS = 3


def _slow_ranks(profiles: Sequence[RankProfile]) -> dict[int, float]:
    """Ranks on which the same kernels, called as often, all take longer; by how much."""
    means = {
        profile.rank: {
            (kernel.name, kernel.count): kernel.time_ns / kernel.count
            for kernel in profile.top_kernels
            if kernel.work_class == "compute" and kernel.count
        }
        for profile in profiles
    }
    slow = {}
    for rank, own in means.items():
        ratios = []
        for key, mean_ns in own.items():
            others = [kernels[key] for other, kernels in means.items() if other != rank and key in kernels]
            if others and np.median(others) > 0:
                ratios.append(mean_ns / float(np.median(others)))
        if len(ratios) >= _MIN_SHARED_KERNELS and np.quantile(ratios, 0.25) >= _SLOW_RATIO:
            slow[rank] = float(np.median(ratios))
    return slow


def _add_kernels(profile: RankProfile, slowdown: float, costs: dict[Cause, _Cost]) -> None:
    compute_ns = float(profile.breakdown.compute_ns)
    excess_ns = compute_ns * (1 - 1 / slowdown)
    if excess_ns:
        costs["slow_device"].add(excess_ns, profile.rank)
    kernels = profile.matrix_kernel_ns + profile.other_kernel_ns
    sloped = sum(point.time_ns for point in profile.roofline if point.bound == "memory")
    bound = min(profile.other_kernel_ns + sloped, kernels) / kernels if kernels else 0.0
    usual_ns = compute_ns - excess_ns
    costs["compute"].add(usual_ns * (1 - bound))
    costs["memory_bound_kernels"].add(usual_ns * bound + profile.breakdown.memory_ns)


def _add_idle(profile: RankProfile, costs: dict[Cause, _Cost]) -> None:
    """Late launches, and launched work that a stream holds back; what the loader explains is the loader's."""
    idle_ns = float(profile.breakdown.idle_ns)
    loading_ns = min(float(profile.host.data_loading_idle_ns), idle_ns)
    costs["data_loading"].add(loading_ns, profile.rank)
    costs["late_host"].add(idle_ns - loading_ns, profile.rank)


def _add_communication(
    profiles: Sequence[RankProfile],
    aligned: Sequence[AlignedCollectives],
    device: Device | None,
    slow: dict[int, float],
    costs: dict[Cause, _Cost],
) -> None:
    waits: dict[tuple[str, str, int], GroupWaits] = {}
    for group in aligned:
        measured = measure_waits(group, device, slow)
        waits |= {(group.kind, group.group, rank): measured for rank in group.ranks}
    for profile in profiles:
        exposed_ns = sum(group.exposed_ns for group in profile.group_times)
        scale = profile.breakdown.exposed_communication_ns / exposed_ns if exposed_ns else 0.0
        for group_time in profile.group_times:
            key = group_time.kind, group_time.group_key, profile.rank
            if key in waits:
                axis = _axis(group_time, profile)
                _add_group(group_time.exposed_ns * scale, profile.rank, axis, waits[key], costs)
    _add_link_evidence(aligned, waits, costs)


def _add_group(ns: float, rank: int, axis: Cause, waits: GroupWaits, costs: dict[Cause, _Cost]) -> None:
    waiting_ns = ns * waits.waiting_ratio.get(rank, 0.0)
    for (cause, late), share in waits.blame.items():
        costs[cause].add(waiting_ns * share, late)
    blamed = sum(waits.blame.values())
    transfer_ns = ns - waiting_ns * min(blamed, 1.0)
    costs["slow_link"].add(transfer_ns * waits.slow_link)
    costs["small_messages"].add(transfer_ns * waits.small)
    costs[axis].add(transfer_ns * (1 - waits.slow_link - waits.small))


def _axis(group: GroupTime, profile: RankProfile) -> Cause:
    description = profile.group_descriptions.get(group.group or "", "")
    axis = find_described_axis(description) or {"all_to_all": "ep", "send_recv": "pp"}.get(group.kind)
    axis = axis or _guessed_axis(group, profile)
    if axis == "pp":
        return "bubble"
    names: dict[str, Cause] = {"tp": "exposed_tp", "cp": "exposed_cp", "ep": "exposed_ep", "dp": "exposed_dp"}
    return names[axis]


_MANY_PER_STEP = 16


def _guessed_axis(group: GroupTime, profile: RankProfile) -> str:
    """Layers talk many times per step and cannot overlap; gradients a few times, under the backward pass."""
    count = sum(
        event.kind == group.kind and event.group_key == group.group_key for event in profile.collectives
    )
    per_step = count / max(len(profile.steps), 1)
    return "tp" if per_step >= _MANY_PER_STEP and group.exposed_ns >= 0.5 * group.time_ns else "dp"


def _add_link_evidence(
    aligned: Sequence[AlignedCollectives],
    waits: dict[tuple[str, str, int], GroupWaits],
    costs: dict[Cause, _Cost],
) -> None:
    for group in aligned:
        measured = waits[group.kind, group.group, group.ranks[0]]
        if measured.slow_link and measured.reached is not None:
            says = f"{group.kind} in {group.group} reaches {measured.reached:.0%} of the link's bandwidth"
            ref = f"collectives[{group.kind}, {group.group}]"
            costs["slow_link"].evidence.append(CauseEvidence(ref=ref, value=measured.reached, says=says))
