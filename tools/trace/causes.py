"""What costs time in a profiled step: causes of a closed list, each with seconds, ranks, evidence and lever.

Rank time is divided once: kernels, copies, transfers by axis, waiting (blamed on the rank that came last and
on what it did before), late launches. What a slow device or a slow link adds is taken from the kernels and
transfers it stretched.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
from pydantic import AliasChoices, Field

from tools.hardware import Device
from tools.scenario.spec import ClosedModel
from tools.trace.alignment import AlignedCollectives, median_of_others
from tools.trace.breakdown import variation_ratio
from tools.trace.classify import load_patterns
from tools.trace.collectives import GroupTime
from tools.trace.host import HostCause
from tools.trace.links import SlowGroup, domain_of, locate
from tools.trace.rank_profile import RankProfile
from tools.trace.terms import find_described_axis
from tools.trace.waits import DEFAULT_DOMAIN, GroupWaits, UnusualRanks, measure_waits

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
    "cpu_binding",
    "allocator_retries",
    "synchronisation",
    "recompilation",
    "checkpointing",
    "host_pauses",
    "trace_mismatch",
]


class CauseText(NamedTuple):
    """A cause as a sentence names it, the lever that would remove it, and what would prove it."""

    label: str
    lever: str
    measure: str


CAUSES: dict[Cause, CauseText] = {
    "compute": CauseText(
        "computing",
        "kernels and precision: raise the rate of the arithmetic",
        "the roofline of the longest kernels, with shapes recorded",
    ),
    "recomputation": CauseText(
        "recomputation",
        "recompute less: free memory by other fields of the plan",
        "peak memory with less recomputation",
    ),
    "memory_bound_kernels": CauseText(
        "memory-bound kernels and copies",
        "fused kernels, a larger micro-batch, fewer passes over the same tensors",
        "which operations the small kernels belong to, with stacks recorded",
    ),
    "exposed_tp": CauseText(
        "exposed tensor-parallel communication",
        "a smaller tensor-parallel degree, or overlapped tensor-parallel communication",
        "one step at half the tensor-parallel degree",
    ),
    "exposed_cp": CauseText(
        "exposed context-parallel communication",
        "a smaller context-parallel degree",
        "one step at half the context-parallel degree",
    ),
    "exposed_ep": CauseText(
        "exposed expert-parallel communication",
        "experts inside the fast domain, or overlapped expert communication",
        "one step with the experts inside a node",
    ),
    "exposed_dp": CauseText(
        "exposed data-parallel communication",
        "gradient communication that overlaps with the backward pass, or fewer data-parallel ranks",
        "one step with more micro-batches: gradients are then sent more rarely",
    ),
    "exposed_pp": CauseText(
        "exposed pipeline communication",
        "fewer stages, or overlapped point-to-point messages",
        "one step with fewer stages",
    ),
    "slow_link": CauseText(
        "a slow link",
        "the link: repair or avoid it before changing the plan",
        "sendrecv_perf of nccl-tests between each pair of these ranks, port counters, cables",
    ),
    "late_host": CauseText(
        "a late host",
        "launches: CUDA graphs, compilation, a larger micro-batch; CPU pinning",
        "the host's threads during the gaps (py-spy, perf), and other processes on its cores",
    ),
    "slow_device": CauseText(
        "a slow device",
        "the device: check clocks, temperature and power, or replace it; not the plan",
        "nvidia-smi -q -d CLOCK,TEMPERATURE,POWER,PERFORMANCE on its node while the job runs",
    ),
    "small_messages": CauseText(
        "small messages",
        "fewer and larger messages: bucket gradients, fuse collectives",
        "one step with larger buckets",
    ),
    "bubble": CauseText(
        "the pipeline bubble",
        "more micro-batches per step, fewer stages, or an interleaved schedule",
        "one step with twice the micro-batches",
    ),
    "imbalance": CauseText(
        "uneven work",
        "an even split: layers per stage, sequence lengths, experts",
        "tokens per expert, layers per stage and sequence lengths of these ranks",
    ),
    "data_loading": CauseText(
        "data loading",
        "the input pipeline: more loader workers, prefetching, faster storage",
        "one step with synthetic data",
    ),
    "cpu_binding": CauseText(
        "processes bound to the wrong CPU cores",
        "binding: run each process on the cores and memory next to its device (numactl, --cpu-bind)",
        "numactl --show of these processes beside nvidia-smi topo -m",
    ),
    "allocator_retries": CauseText(
        "memory taken and given back inside the step",
        "memory: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, or a plan that leaves more free",
        "torch.cuda.memory_stats: num_alloc_retries and inactive_split_bytes",
    ),
    "synchronisation": CauseText(
        "hosts that wait for their device inside the step",
        "the program: no .item(), .cpu(), nonzero or print of a tensor between two steps",
        "torch.cuda.set_sync_debug_mode('warn') for one step: it names the lines",
    ),
    "recompilation": CauseText(
        "compiling inside the step",
        "compilation: mark dynamic shapes, pad to fixed ones, raise the cache limit",
        "TORCH_LOGS=recompiles: it names the guard that failed",
    ),
    "checkpointing": CauseText(
        "a checkpoint inside the step",
        "checkpoints: save asynchronously, or more rarely",
        "steps without a checkpoint",
    ),
    "host_pauses": CauseText(
        "rare long pauses of single hosts",
        "pauses: collect garbage on all ranks at the same step (gc.disable, gc.collect every n steps)",
        "gc.callbacks with times on each rank, and what else runs on the nodes",
    ),
    "trace_mismatch": CauseText(
        "the trace does not match the scenario",
        "traces of the job that the scenario describes, or a scenario of the traced job",
        "traces of this job",
    ),
}
FAULTS: frozenset[Cause] = frozenset(
    {
        "slow_link",
        "slow_device",
        "small_messages",
        "imbalance",
        "late_host",
        "cpu_binding",
        *get_args(HostCause),
    }
)
"""Wrong with the run, whatever its plan; what the plan itself costs is not."""
MIN_FAULT_SHARE = 0.06
"""Share of the step: a fault that costs more comes before what the plan costs."""
MIN_SHARE = 0.01
SLOW_RATIO = 1.08
MIN_SHARED_KERNELS = 3
FREQUENT_PER_STEP = 16
EXPOSED_AXES: dict[str, Cause] = {
    "tp": "exposed_tp",
    "cp": "exposed_cp",
    "ep": "exposed_ep",
    "dp": "exposed_dp",
    "pp": "bubble",
}
MIN_RANKS_TO_COMPARE = 3
BLAMED_RATIO = 0.35
"""A rank with this share of the most blamed one's time is named with it, if the usual rank has far less."""
TIMES_USUAL = 3.0
TIMES_OTHERS = 2.0
"""Whom others wait for is named if it idles this much more than usual: one of equals is last by chance."""
BUSIER_RATIO = 1.02
"""A rank that computes this much more over the whole trace has more work."""
SLOW_LAUNCH_RATIO = 1.6
"""Launch calls that take this much longer than the others': the process runs far from its device."""
LINK_SPREAD = 0.15
"""Healthy fabrics lie this near to what nccl-tests publish."""
MAX_NAMED_RANKS, MAX_NAMED_GROUPS = 8, 3
INTERVAL_Z = 1.28
"""80%, as of a prediction."""


class TraceEvidence(ClosedModel):
    """A number with the place in the report that it comes from."""

    kind: Literal["profile", "roofline"] = "profile"
    ref: str
    value: float
    summary: str = Field(alias="says")


class CauseFinding(ClosedModel):
    """One cause, what it costs in the mean step of a rank, and what would remove it."""

    cause: Cause
    seconds: float
    seconds_low: float | None = None
    seconds_high: float | None = None
    """An 80% interval by how the steps vary; None if fewer than two were profiled."""
    share: float
    """Share of the step."""
    ranks: list[int]
    """Whom it is due to; empty for all alike."""
    place: str = ""
    """The link or operation, if the traces tell."""
    measure: str = ""
    """What to measure next."""
    evidence: list[TraceEvidence]
    lever: str
    summary: str = Field(validation_alias=AliasChoices("summary", "says"))  # release 0.2 stored `says`


@dataclass
class _Cost:
    ns: float = 0.0
    by_rank: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    """Whom the time is due to."""
    evidence: list[TraceEvidence] = field(default_factory=list)
    place: str = ""
    named: list[int] = field(default_factory=list)
    """The ranks of the place, where it is not by their delays that they are known."""

    own_by_rank: dict[int, float] = field(default_factory=dict)
    """What each rank itself idled: who comes last among several late ones is chance."""

    def add(self, ns: float, due_to: int | None = None) -> None:
        self.ns += ns
        if due_to is not None:
            self.by_rank[due_to] += ns


def find_causes(
    profiles: Sequence[RankProfile], aligned: Sequence[AlignedCollectives], device: Device | None = None
) -> list[CauseFinding]:
    """Faults first, then by their cost; causes below one percent of the step are left out."""
    working = [profile for profile in profiles if profile.breakdown.total_ns]
    total_ns = sum(profile.breakdown.total_ns for profile in working)
    if not total_ns:
        return []
    costs: dict[Cause, _Cost] = defaultdict(_Cost)
    slow = _slow_ranks(working)
    delays_ns: dict[Cause, dict[int, float]] = defaultdict(dict)
    idle_by_rank = _divide_idle(working)
    for profile in working:
        terms, rank = profile.breakdown, profile.rank
        excess_ns = terms.compute_ns * (1 - 1 / slow.get(rank, 1.0))
        if excess_ns:
            costs["slow_device"].add(excess_ns, rank)
            costs["slow_device"].own_by_rank[rank] = excess_ns
        bound, saving_ns = memory_bound_ratio([profile]), min(profile.host.saving_ns, terms.memory_ns)
        costs["compute"].add((terms.compute_ns - excess_ns) * (1 - bound))
        copies_ns = terms.memory_ns - saving_ns
        costs["memory_bound_kernels"].add((terms.compute_ns - excess_ns) * bound + copies_ns)
        costs["checkpointing"].add(saving_ns, rank)
        delays_ns["slow_device"][rank] = excess_ns * len(working)
        for cause, idle_ns in idle_by_rank[rank].items():
            costs[cause].add(idle_ns, rank)
            costs[cause].own_by_rank[rank] = idle_ns
            if len(working) >= MIN_RANKS_TO_COMPARE:
                usual_ns = float(np.median([each.get(cause, 0.0) for each in idle_by_rank.values()]))
                delays_ns[cause][rank] = (idle_ns - usual_ns) * len(working)
    _add_communication(working, aligned, device, slow, idle_by_rank, costs)
    for rank, ratio in slow.items():
        summary = f"the same kernels take {ratio:.2f} times as long on rank {rank} as on the others"
        costs["slow_device"].evidence.append(
            TraceEvidence(ref=f"ranks[rank={rank}].top_ops", value=ratio, summary=summary)
        )
    for cause, by_rank in delays_ns.items():
        # A step is as slow as its slowest rank, even if the traces do not show the others waiting for it.
        costs[cause].ns = max([costs[cause].ns, *by_rank.values()])
    # The mean steady step of a rank; the mean trace if no steps are marked.
    steps = sum(len(profile.steady_steps) or 1 for profile in working)
    step_s = sum(profile.steady_breakdown.total_ns for profile in working) * 1e-9 / steps
    spreads = [
        variation / len(profile.steady_steps) ** 0.5
        for profile in working
        if (variation := variation_ratio(profile.steps)) is not None
    ]
    spread = INTERVAL_Z * float(np.median(spreads)) if spreads else None
    findings = [
        _finding(cause, cost, cost.ns / total_ns, step_s, spread, len(working))
        for cause, cost in costs.items()
        if cost.ns >= MIN_SHARE * total_ns
    ]

    def order(finding: CauseFinding) -> tuple[bool, float]:
        is_clear_fault = finding.cause in FAULTS and finding.share >= MIN_FAULT_SHARE
        return not is_clear_fault, -finding.seconds

    return sorted(findings, key=order)


def _divide_idle(profiles: Sequence[RankProfile]) -> dict[int, dict[Cause, float]]:
    """Idle time of each rank by what its host did; what nothing explains are late launches, or a process on
    the wrong cores if every one of its launches takes far longer than the others'."""
    calls_ns = np.array([each.host.launch_median_ns for each in profiles])
    is_far = (calls_ns > SLOW_LAUNCH_RATIO * np.median(calls_ns)) & (len(profiles) >= MIN_RANKS_TO_COMPARE)
    divided: dict[int, dict[Cause, float]] = {}
    for profile, far in zip(profiles, is_far.tolist(), strict=True):
        left_ns = float(profile.breakdown.idle_ns)
        parts: dict[Cause, float] = {}
        known = {"data_loading": profile.host.data_loading_idle_ns, **profile.host.idle_ns_by_cause}
        for cause, ns in known.items():
            parts[cause] = min(float(ns), left_ns)
            left_ns -= parts[cause]
        parts["cpu_binding" if far else "late_host"] = left_ns
        divided[profile.rank] = parts
    return divided


def _slow_ranks(profiles: Sequence[RankProfile]) -> dict[int, float]:
    """Ranks on which the same products, called as often, all take longer; by how much.

    Clocks that fall slow products and leave what memory bounds as it was; a shared core slows every op.
    """
    is_product = load_patterns().matrix_kernel.search
    means: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    for profile in profiles:
        for kernel in profile.top_kernels:
            is_clocked = profile.basis == "host" or is_product(kernel.name)
            if kernel.work_class == "compute" and kernel.count and is_clocked:
                means[kernel.name, kernel.count][profile.rank] = kernel.time_ns / kernel.count
    ratios: dict[int, list[float]] = defaultdict(list)
    for by_rank in means.values():
        times_ns = np.array([*by_rank.values()])
        for rank, ratio in zip(by_rank, times_ns / np.maximum(median_of_others(times_ns), 1e-9), strict=True):
            if len(by_rank) > 1:
                ratios[rank].append(float(ratio))
    return {
        rank: float(np.median(own))
        for rank, own in ratios.items()
        if len(own) >= MIN_SHARED_KERNELS and np.quantile(own, 0.25) >= SLOW_RATIO
    }


def memory_bound_ratio(profiles: Sequence[RankProfile]) -> float:
    """What share of the compute kernels' time bandwidth limits."""
    other_ns = sum(profile.other_kernel_ns for profile in profiles)
    all_ns = other_ns + sum(profile.matrix_kernel_ns for profile in profiles)
    points = (point for profile in profiles for point in profile.roofline)
    sloped_ns = sum(point.time_ns for point in points if point.bound == "memory")
    return min(other_ns + sloped_ns, all_ns) / all_ns if all_ns else 0.0


def _add_communication(
    profiles: Sequence[RankProfile],
    aligned: Sequence[AlignedCollectives],
    device: Device | None,
    slow: dict[int, float],
    idle_by_rank: dict[int, dict[Cause, float]],
    costs: dict[Cause, _Cost],
) -> None:
    """Exposed time of each group: waiting goes to whom it is due to, transfer to links, messages and axes."""
    waits: dict[tuple[str, str, int], GroupWaits] = {}
    unusual = UnusualRanks(
        slow,
        _above_others(profiles, [each.breakdown.compute_ns for each in profiles], BUSIER_RATIO),
        _above_others(profiles, [each.breakdown.idle_ns for each in profiles], TIMES_OTHERS),
    )
    domain = domain_of(device) if device is not None else DEFAULT_DOMAIN
    placed: list[SlowGroup] = []
    lost: list[tuple[float, TraceEvidence]] = []
    for group, measured in zip(aligned, measure_waits(aligned, device, unusual), strict=True):
        waits |= {(group.kind, group.group, rank): measured for rank in group.ranks}
        if measured.reached is None:
            continue
        placed.append(SlowGroup(group.link_ranks, group.place(domain), measured.slow_link > 0))
        if measured.slow_link:
            beside = "of what the same collective reaches in other groups"
            usual = beside if measured.is_beside_peers else "of what nccl-tests publish for such links"
            summary = f"{group.kind} in {group.group} reaches {measured.reached:.0%} {usual}"
            found = TraceEvidence(
                ref=f"collectives[{group.kind}, {group.group}]", value=measured.reached, summary=summary
            )
            lost.append((measured.slow_link * float(group.transfer_ns.sum()), found))
    if lost:
        link = costs["slow_link"]
        link.evidence += [found for _, found in sorted(lost, key=lambda each: -each[0])[:MAX_NAMED_GROUPS]]
        place = locate(placed, domain)
        link.place, link.named = place.name, place.ranks
    for profile in profiles:
        exposed_ns = sum(group.exposed_ns for group in profile.group_times)
        scale = profile.breakdown.exposed_communication_ns / exposed_ns if exposed_ns else 0.0
        for time in profile.group_times:
            found_waits = waits.get((time.kind, time.group_key, profile.rank))
            if found_waits is None:
                continue
            own_ns = time.exposed_ns * scale
            waiting_ns = own_ns * found_waits.waiting_ratios.get(profile.rank, 0.0)
            for (cause, late), share in found_waits.blame.items():
                parts: dict[Cause, float] = idle_by_rank.get(late, {}) if cause == "late_host" else {}
                whole = sum(parts.values())
                for part, ns in parts.items() if whole else ():
                    costs[part].add(waiting_ns * share * ns / whole, late)
                if not whole:
                    costs[cause].add(waiting_ns * share, late if late >= 0 else None)
            transfer_ns = own_ns - waiting_ns * min(sum(found_waits.blame.values()), 1.0)
            slow_ns = (own_ns - waiting_ns) * found_waits.slow_link
            small_ns = (own_ns - waiting_ns) * found_waits.small
            costs["slow_link"].add(slow_ns)
            costs["small_messages"].add(small_ns)
            costs[_exposed_axis(time, profile)].add(transfer_ns - slow_ns - small_ns)


def _above_others(profiles: Sequence[RankProfile], values_ns: Sequence[int], ratio: float) -> set[int]:
    others_ns = median_of_others(np.array(values_ns, dtype=np.float64))
    return {
        profile.rank
        for profile, own_ns, usual_ns in zip(profiles, values_ns, others_ns.tolist(), strict=True)
        if own_ns > ratio * usual_ns
    }


def _exposed_axis(group: GroupTime, profile: RankProfile) -> Cause:
    """By the group's description, by what only one axis sends, or by how often it talks.

    Layers talk many times per step and cannot overlap; gradients a few times, under the backward pass.
    """
    description = profile.group_descriptions.get(group.group or "", "")
    axis = find_described_axis(description) or {"all_to_all": "ep", "send_recv": "pp"}.get(group.kind)
    if axis is None:
        key = group.kind, group.group_key
        count = sum((event.kind, event.group_key) == key for event in profile.collectives)
        is_frequent = count / max(len(profile.steps), 1) >= FREQUENT_PER_STEP
        axis = "tp" if is_frequent and group.exposed_ns >= 0.5 * group.time_ns else "dp"
    return EXPOSED_AXES[axis]


def _finding(
    cause: Cause, cost: _Cost, share: float, step_s: float, spread: float | None, num_ranks: int
) -> CauseFinding:
    """A fault names each rank that stands out, with its own delay and others' waiting for it."""
    text, ranks = CAUSES[cause], cost.named
    if cause in FAULTS and cost.by_rank and not ranks:
        own = cost.own_by_rank if any(cost.own_by_rank.values()) else cost.by_rank
        least_ns = max(_usual_ns(own, num_ranks) * TIMES_OTHERS, 1.0)
        stand_out = _standing_out(own, num_ranks) | _standing_out(cost.by_rank, num_ranks)
        ranks = sorted(rank for rank in stand_out if own.get(rank, 0.0) >= least_ns)
    named = f" (rank {' and '.join(map(str, ranks[:MAX_NAMED_RANKS]))})" if ranks else ""
    where = f" ({cost.place})" if cost.place else named
    seconds = share * step_s
    low = high = None
    if spread is not None:
        relative = (spread**2 + (LINK_SPREAD**2 if cause == "slow_link" else 0.0)) ** 0.5
        low, high = max(seconds * (1 - relative), 0.0), min(seconds * (1 + relative), step_s)
    interval = "" if low is None else f", {low:.2g} to {high:.2g} s"
    summary = f"{text.label}{where}: {seconds:.3g} s{interval} of the {step_s:.3g} s step ({share:.0%})"
    evidence = [TraceEvidence(ref=f"diagnosis.causes[cause={cause}]", value=round(share, 4), summary=summary)]
    evidence += cost.evidence
    for rank in ranks[:MAX_NAMED_RANKS] if cost.by_rank else ():
        part = share * cost.by_rank[rank] / cost.ns
        blamed = f"rank {rank}: {part:.0%} of all rank time is its own delay or others' waiting for it"
        evidence.append(TraceEvidence(ref=f"ranks[rank={rank}]", value=round(part, 4), summary=blamed))
    return CauseFinding(
        cause=cause,
        seconds=seconds,
        seconds_low=low,
        seconds_high=high,
        share=round(share, 4),
        ranks=ranks,
        place=cost.place,
        measure=text.measure,
        evidence=evidence,
        lever=text.lever,
        summary=summary,
    )


def _standing_out(by_rank: Mapping[int, float], num_ranks: int) -> set[int]:
    least_ns = max(BLAMED_RATIO * max(by_rank.values()), TIMES_USUAL * _usual_ns(by_rank, num_ranks), 1.0)
    return {rank for rank, ns in by_rank.items() if ns >= least_ns}


def _usual_ns(by_rank: Mapping[int, float], num_ranks: int) -> float:
    """The lower median over all ranks, also those that nothing is due to; of one alone nothing is usual."""
    in_order = sorted([*by_rank.values(), *[0.0] * (num_ranks - len(by_rank))])
    return in_order[(num_ranks - 1) // 2] if num_ranks > 1 else 0.0
