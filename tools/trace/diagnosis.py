"""The main cause of lost time, with its share of the step, its evidence and its confidence.

The bottleneck is the term with the largest share; `causes` says what is behind it. Waiting at collectives is
attributed to what the late ranks did, as a competing cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

import numpy as np
from pydantic import Field

from tools.physics.terms import Bottleneck
from tools.scenario.spec import ClosedModel
from tools.trace.alignment import AlignedCollectives, CollectiveSummary
from tools.trace.breakdown import Breakdown, add_breakdowns
from tools.trace.causes import Cause, CauseFinding, TraceEvidence, memory_bound_ratio
from tools.trace.classify import ATTENTION_OPS
from tools.trace.rank_profile import RankProfile
from tools.trace.waits import Straggler

CLOSE_RATIO = 0.6
"""A second cause with this much of the first one's share competes with it."""
CLEAR_MARGIN = 0.25
BEST_CONFIDENCE = 0.95
MAX_NAMED_STRAGGLERS = 4


class ComputeSplit(ClosedModel):
    """Seconds of the mean step in matrix products and attention; None for what the trace does not show."""

    ideal_s: float | None
    """What the products take at the device's roof."""
    inefficiency_s: float | None
    attention_s: float
    other_s: float
    """Compute kernels without recorded shapes."""


class ProfileCause(ClosedModel):
    """A second cause whose share comes near the first one's."""

    bottleneck: Bottleneck
    severity: float
    why: str


class ProfileDiagnosis(ClosedModel):
    """The main cause of lost time, with its weight, its evidence and how far to trust it."""

    cause: Cause | None = None
    """What to look at first: the costliest fault, or else what the plan costs most."""
    lever: str | None = None
    causes: list[CauseFinding] = Field(default_factory=list)
    """Each with its seconds of the step, its ranks, its evidence and its lever; the first one counts."""
    compute_split: ComputeSplit | None = None
    bottleneck: Bottleneck
    """The term with the largest share."""
    severity: float
    """Share of the step."""
    confidence: float
    summary: str
    shares: dict[Bottleneck, float]
    evidence: list[TraceEvidence]
    competing_causes: list[ProfileCause]
    next_to_profile: list[str]


@dataclass(frozen=True)
class Findings:
    """Results of the other analyses."""

    profiles: Sequence[RankProfile]
    aligned: Sequence[AlignedCollectives]
    collectives: list[CollectiveSummary]
    stragglers: list[Straggler]
    causes: list[CauseFinding]
    has_pipeline: bool
    num_unreadable: int

    @property
    def knows_waiting(self) -> bool:
        """Whether waiting can be told from transfer, which needs several ranks."""
        return any(collective.waiting_us is not None for collective in self.collectives)


@dataclass(frozen=True)
class _Shares:
    """Ratios of rank time; the first five add up to 1."""

    compute: float
    memory: float
    communication: float
    pipeline: float
    host: float
    waiting: float
    """Part of `communication` spent on ranks that had not arrived."""
    late_hosts: float
    """Part of `waiting` that a straggler's late host explains."""
    steady: Breakdown


def diagnose(findings: Findings) -> ProfileDiagnosis:
    """The largest cause, with competing ones."""
    weighed = _weigh(findings)
    shares: dict[Bottleneck, float] = {name: getattr(weighed, name) for name in get_args(Bottleneck)}
    shares = dict(sorted(shares.items(), key=lambda entry: -entry[1]))
    (cause, share), (_, second) = list(shares.items())[:2]
    with_late_hosts = {**shares, "host": shares["host"] + weighed.late_hosts}
    competing = [
        ProfileCause(bottleneck=name, severity=round(severity, 4), why=_why(name, weighed, findings))
        for name, severity in sorted(with_late_hosts.items(), key=lambda rival: -rival[1])
        if name != cause and severity >= CLOSE_RATIO * share
    ]
    confidence, advice = BEST_CONFIDENCE * (0.75 + 0.25 * min((share - second) / CLEAR_MARGIN, 1.0)), []
    for factor, remedy in _weaknesses(findings, cause):
        confidence *= factor
        advice.append(remedy)
    first = findings.causes[0] if findings.causes else None
    return ProfileDiagnosis(
        cause=first.cause if first else None,
        lever=first.lever if first else None,
        causes=findings.causes,
        compute_split=_split_compute(findings.profiles),
        bottleneck=cause,
        severity=round(share, 4),
        confidence=round(confidence, 3),
        summary=_why(cause, weighed, findings),
        shares={name: round(ratio, 4) for name, ratio in shares.items()},
        evidence=[*_time_evidence(weighed, findings), *_rate_evidence(findings)],
        competing_causes=competing,
        next_to_profile=advice,
    )


def _weigh(findings: Findings) -> _Shares:
    profiles = findings.profiles
    steady = add_breakdowns([profile.steady_breakdown for profile in profiles])
    whole = add_breakdowns([profile.breakdown for profile in profiles])
    total = max(steady.total_ns, 1)
    exposed, compute = steady.exposed_communication_ns / total, steady.compute_ns / total
    point_to_point = 0.0
    if findings.has_pipeline:
        exchanged_ns = sum(profile.exposed_by_kind_ns.get("send_recv", 0) for profile in profiles)
        point_to_point = min(exchanged_ns / max(whole.exposed_communication_ns, 1), 1.0)
    waits = [group.waiting_ns for group in findings.aligned]
    waiting_ns = float(sum(np.sum(ns) for ns in waits if ns is not None))
    waiting = min(waiting_ns / max(whole.communication_ns, 1), 1.0) * exposed
    late = sum(each.share_of_lateness for each in findings.stragglers if each.cause_us.is_host)
    bandwidth_bound = memory_bound_ratio(profiles)
    return _Shares(
        compute=compute * (1 - bandwidth_bound),
        memory=steady.memory_ns / total + compute * bandwidth_bound,
        communication=exposed * (1 - point_to_point),
        pipeline=exposed * point_to_point,
        host=steady.idle_ns / total,
        waiting=waiting,
        late_hosts=waiting * min(float(late), 1.0),
        steady=steady,
    )


def _split_compute(profiles: Sequence[RankProfile]) -> ComputeSplit | None:
    """By the shapes that the traces record; None if they record none."""
    points = [point for profile in profiles for point in profile.roofline]
    if not points:
        return None
    scale = 1e-9 / max(sum(max(len(profile.steps), 1) for profile in profiles), 1)
    products = [point for point in points if point.op not in ATTENTION_OPS]
    products_ns = sum(point.time_ns for point in products)
    attention_ns = sum(point.time_ns for point in points) - products_ns
    roofed = bool(products) and all(point.roof_flops_per_s for point in products)
    ideal_ns = sum(
        min(point.flops * point.count / (point.roof_flops_per_s or 1.0) * 1e9, float(point.time_ns))
        for point in products
    )
    compute_ns = sum(profile.breakdown.compute_ns for profile in profiles)
    return ComputeSplit(
        ideal_s=ideal_ns * scale if roofed else None,
        inefficiency_s=(products_ns - ideal_ns) * scale if roofed else None,
        attention_s=attention_ns * scale,
        other_s=max(compute_ns - products_ns - attention_ns, 0) * scale,
    )


def _why(cause: Bottleneck, shares: _Shares, findings: Findings) -> str:
    if cause == "communication":
        waiting = "waiting cannot be separated from transfer without the other ranks"
        if findings.knows_waiting:
            late = ", ".join(map(str, sorted(straggler.rank for straggler in findings.stragglers)))
            named = f" (rank {late})" if late else ""
            waiting = f"{shares.waiting:.0%} of the step is waiting for late ranks{named}"
        return f"exposed communication takes {shares.communication:.0%} of the step; {waiting}"
    if cause == "host":
        late = f"; late hosts of stragglers explain {shares.late_hosts:.0%} more, spent waiting at"
        idle = f"the devices are idle {shares.host:.0%} of the step, mostly before late launches"
        return f"{idle}{late} collectives" if shares.late_hosts else idle
    if cause == "pipeline":
        return f"exposed send and receive (bubble and transfer) take {shares.pipeline:.0%} of the step"
    if cause == "memory":
        return f"copies and bandwidth-bound kernels take {shares.memory:.0%} of the step"
    return f"matrix work takes {shares.compute:.0%} of the step"


def _time_evidence(weighed: _Shares, findings: Findings) -> list[TraceEvidence]:
    """Where the ranks' time goes, each share with its place in the report."""
    steady = weighed.steady
    total_ns = max(steady.total_ns, 1)
    exposed_ns = steady.exposed_communication_ns
    shares = [
        ("total.compute_us", steady.compute_ns / total_ns, "of rank time computes"),
        ("total.exposed_communication_us", exposed_ns / total_ns, "communicates, exposed"),
    ]
    if all(profile.basis == "host" for profile in findings.profiles):
        shares.append(("total.idle_us", steady.idle_ns / total_ns, "runs neither an op nor a collective"))
    else:
        idle = (
            ("total.idle_host_us", steady.idle_host_ns, "is idle because the launch came late"),
            ("total.idle_waiting_us", steady.idle_waiting_ns, "is idle with work launched"),
            ("total.idle_unknown_us", steady.idle_unknown_ns, "is idle, and the trace does not show why"),
        )
        shares += [(ref, ns / total_ns, text) for ref, ns, text in idle if ns]
    if findings.knows_waiting:
        shares.append(("collectives[].waiting_us", weighed.waiting, "waits in collectives for late ranks"))
    for late in findings.stragglers[:MAX_NAMED_STRAGGLERS]:
        summary = f"of collectives see rank {late.rank} arrive last ({late.cause})"
        shares.append((f"stragglers[rank={late.rank}]", late.arrives_last_ratio, summary))
    return [
        TraceEvidence(ref=ref, value=round(share, 4), summary=f"{share:.1%} {text}")
        for ref, share, text in shares
    ]


def _rate_evidence(findings: Findings) -> list[TraceEvidence]:
    """What the longest collective of a known size and the op that loses most reach of their limits."""
    evidence = []
    for position, collective in enumerate(findings.collectives):
        reached, size_bytes = collective.bus_bandwidth_gbytes_per_s, collective.message_bytes
        if reached is not None and size_bytes is not None:
            link = collective.link_gbytes_per_s
            beside = f" of the link's {link:.3g}" if link else ""
            size = f"{size_bytes / 1e6:.1f} MB"
            summary = f"{collective.kind} of {size} reaches {reached:.1f} GB/s{beside} on the bus"
            ref = f"collectives[{position}].bus_bandwidth_gbytes_per_s"
            evidence.append(TraceEvidence(ref=ref, value=round(reached, 3), summary=summary))
            break
    points = [point for rank in findings.profiles for point in rank.roofline if point.lost_ns is not None]
    if points:
        worst = max(points, key=lambda point: point.lost_ns or 0.0)
        ratio = worst.achieved_flops_per_s / (worst.roof_flops_per_s or 1.0)
        summary = (
            f"{worst.op} {worst.shape} ({worst.precision}) reaches {ratio:.0%} of its {worst.bound} roof"
        )
        evidence.append(
            TraceEvidence(kind="roofline", ref="ranks[].roofline", value=round(ratio, 4), summary=summary)
        )
    return evidence


def _weaknesses(findings: Findings, cause: Bottleneck) -> list[tuple[float, str]]:
    """Factor and remedy of each."""
    profiles, collectives, unreadable = findings.profiles, findings.collectives, findings.num_unreadable
    ranks, world_size = len(profiles), max((profile.world_size or 1 for profile in profiles), default=1)
    steps = min((len(profile.steady_steps) for profile in profiles), default=0)
    is_torch = any(".json" in profile.file for profile in profiles)
    no_shapes = is_torch and cause in ("compute", "memory") and not any(rank.roofline for rank in profiles)
    no_sizes = is_torch and bool(collectives) and all(each.message_bytes is None for each in collectives)
    on_host = any(profile.basis == "host" for profile in profiles)
    few = f"profile more ranks at the same steps: {ranks} of {world_size} were given"
    weaknesses = (
        (ranks < world_size, 0.75 if ranks == 1 else 0.9, few),
        (unreadable > 0, 0.9, f"capture the {unreadable} unreadable files again"),
        (steps == 0, 0.8, "mark steps (profiler.step()), so that warm-up can be separated from steady work"),
        (steps == 1, 0.85, "profile three or more steps: one does not show variation"),
        (no_shapes, 0.8, "record shapes (record_shapes=True), so that kernels can be set on the roofline"),
        (no_sizes, 0.95, "use PyTorch 2.3 or newer: its traces carry sizes and groups of collectives"),
        (on_host, 0.9, "profile on accelerators: without device events the host's spans stand in for them"),
    )
    return [(factor, remedy) for is_so, factor, remedy in weaknesses if is_so]
