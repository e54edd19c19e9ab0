"""The main cause of lost time, with its share of the step, its evidence and its confidence.

The bottleneck is the term with the largest share; `causes` says what is behind it. Waiting at collectives is
attributed to what the late ranks did, as a competing cause.
"""

from dataclasses import dataclass, field
from typing import Literal, get_args

from pydantic import Field

from tools.cost.terms import Bottleneck
from tools.scenario.spec import Result
from tools.trace.alignment import CollectiveSummary, Straggler
from tools.trace.breakdown import Breakdown, add_breakdowns
from tools.trace.causes import Cause, CauseFinding
from tools.trace.compute import ComputeSplit
from tools.trace.rank_profile import RankProfile


class ProfileEvidence(Result):
    """A number with the place in the report that it comes from."""

    kind: Literal["profile", "roofline"]
    ref: str
    value: float
    says: str


class ProfileCause(Result):
    """A second cause whose share comes near the first one's."""

    bottleneck: Bottleneck
    severity: float
    why: str


class ProfileDiagnosis(Result):
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
    evidence: list[ProfileEvidence]
    competing_causes: list[ProfileCause]
    next_to_profile: list[str]


@dataclass(frozen=True)
class Shares:
    """Ratios of rank time; the first five add up to 1."""

    compute: float
    memory: float
    communication: float
    pipeline: float
    host: float
    waiting: float
    """Part of `communication` spent on ranks that had not arrived."""
    steady: Breakdown

    def ranked(self) -> dict[Bottleneck, float]:
        """Causes, largest share first."""
        shares: dict[Bottleneck, float] = {name: float(getattr(self, name)) for name in get_args(Bottleneck)}
        return dict(sorted(shares.items(), key=lambda share: -share[1]))


def weigh(profiles: list[RankProfile], waiting_ns: float, has_pipeline: bool) -> Shares:
    """Shares over all ranks; `waiting_ns` is the sum of all ranks' waiting."""
    steady = add_breakdowns([profile.steady_breakdown for profile in profiles])
    whole = add_breakdowns([profile.breakdown for profile in profiles])
    total = max(steady.total_ns, 1)
    exposed = steady.exposed_communication_ns / total
    point_to_point = _point_to_point_ratio(profiles, whole) if has_pipeline else 0.0
    bandwidth_bound = _bandwidth_bound_ratio(profiles)
    compute = steady.compute_ns / total
    waiting = min(waiting_ns / max(whole.communication_ns, 1), 1.0) * exposed
    return Shares(
        compute=compute * (1 - bandwidth_bound),
        memory=steady.memory_ns / total + compute * bandwidth_bound,
        communication=exposed * (1 - point_to_point),
        pipeline=exposed * point_to_point,
        host=steady.idle_ns / total,
        waiting=waiting,
        steady=steady,
    )


def _point_to_point_ratio(profiles: list[RankProfile], whole: Breakdown) -> float:
    """Share of exposed communication that is send and receive."""
    exchanged = sum(profile.exposed_by_kind_ns.get("send_recv", 0) for profile in profiles)
    return min(exchanged / max(whole.exposed_communication_ns, 1), 1.0)


def _bandwidth_bound_ratio(profiles: list[RankProfile]) -> float:
    """Share of kernel time that memory bandwidth bounds."""
    matrix = sum(profile.matrix_kernel_ns for profile in profiles)
    other = sum(profile.other_kernel_ns for profile in profiles)
    sloped = sum(point.time_ns for rank in profiles for point in rank.roofline if point.bound == "memory")
    return min(other + sloped, matrix + other) / (matrix + other) if matrix + other else 0.0


_CLOSE_RATIO = 0.6
"""A second cause with this much of the first one's share competes with it."""
_CLEAR_MARGIN = 0.25
_START = 0.95
_LATE_HOST = ("data loader", "host late")


@dataclass(frozen=True)
class Findings:
    """Results of the other analyses."""

    profiles: list[RankProfile]
    shares: Shares
    collectives: list[CollectiveSummary]
    stragglers: list[Straggler]
    num_unreadable: int
    causes: list[CauseFinding] = field(default_factory=list)
    compute_split: ComputeSplit | None = None


def diagnose(findings: Findings) -> ProfileDiagnosis:
    """The largest cause, with competing ones."""
    shares = findings.shares.ranked()
    (cause, share), (_, second) = list(shares.items())[:2]
    with_late_hosts = {**shares, "host": shares["host"] + _late_host_share(findings)}
    competing = [
        ProfileCause(bottleneck=name, severity=round(severity, 4), why=_why(name, findings))
        for name, severity in sorted(with_late_hosts.items(), key=lambda rival: -rival[1])
        if name != cause and severity >= _CLOSE_RATIO * share
    ]
    confidence, advice = _weigh_confidence(findings, cause, share - second)
    first = findings.causes[0] if findings.causes else None
    return ProfileDiagnosis(
        cause=first.cause if first else None,
        lever=first.lever if first else None,
        causes=findings.causes,
        compute_split=findings.compute_split,
        bottleneck=cause,
        severity=round(share, 4),
        confidence=confidence,
        summary=_why(cause, findings),
        shares={name: round(ratio, 4) for name, ratio in shares.items()},
        evidence=_collect_evidence(findings),
        competing_causes=competing,
        next_to_profile=advice,
    )


def _late_host_share(findings: Findings) -> float:
    """Share of the step that all ranks wait because a straggler's host was late."""
    late = sum(
        straggler.share_of_lateness
        for straggler in findings.stragglers
        if straggler.cause.startswith(_LATE_HOST)
    )
    return findings.shares.waiting * min(float(late), 1.0)


def _why(cause: Bottleneck, findings: Findings) -> str:
    shares = findings.shares
    if cause == "communication":
        return f"exposed communication takes {shares.communication:.0%} of the step; {_waiting(findings)}"
    if cause == "host":
        root = _late_host_share(findings)
        more = (
            f"; late hosts of stragglers explain {root:.0%} more, spent waiting at collectives"
            if root
            else ""
        )
        return f"the devices are idle {shares.host:.0%} of the step, mostly before late launches{more}"
    if cause == "pipeline":
        return f"exposed send and receive (bubble and transfer) take {shares.pipeline:.0%} of the step"
    if cause == "memory":
        return f"copies and bandwidth-bound kernels take {shares.memory:.0%} of the step"
    return f"matrix work takes {shares.compute:.0%} of the step"


def _waiting(findings: Findings) -> str:
    if all(collective.waiting_us is None for collective in findings.collectives):
        return "waiting cannot be separated from transfer without the other ranks"
    late = ", ".join(str(rank) for rank in sorted(straggler.rank for straggler in findings.stragglers))
    blame = f" (rank {late})" if late else ""
    return f"{findings.shares.waiting:.0%} of the step is waiting for late ranks{blame}"


def _collect_evidence(findings: Findings) -> list[ProfileEvidence]:
    """Numbers, each with the place it comes from."""
    shares, steady = findings.shares, findings.shares.steady
    total = max(steady.total_ns, 1)
    evidence = [
        _evidence("total.compute_us", steady.compute_ns / total, "of rank time computes"),
        _evidence(
            "total.exposed_communication_us", steady.exposed_communication_ns / total, "communicates, exposed"
        ),
        *_idle_evidence(findings, total),
    ]
    if any(collective.waiting_us is not None for collective in findings.collectives):
        says = "waits in collectives for late ranks"
        evidence.append(_evidence("collectives[].waiting_us", shares.waiting, says))
    for straggler in findings.stragglers[:4]:
        says = f"of collectives see rank {straggler.rank} arrive last ({straggler.cause})"
        evidence.append(_evidence(f"stragglers[rank={straggler.rank}]", straggler.arrives_last_ratio, says))
    return evidence + _bandwidth_evidence(findings) + _roofline_evidence(findings)


def _idle_evidence(findings: Findings, total_ns: int) -> list[ProfileEvidence]:
    steady = findings.shares.steady
    if all(profile.basis == "host" for profile in findings.profiles):
        return [_evidence("total.idle_us", steady.idle_ns / total_ns, "runs neither an op nor a collective")]
    parts = (
        ("total.idle_host_us", steady.idle_host_ns, "is idle because the launch came late"),
        ("total.idle_waiting_us", steady.idle_waiting_ns, "is idle with work launched"),
        ("total.idle_unknown_us", steady.idle_unknown_ns, "is idle, and the trace does not show why"),
    )
    return [_evidence(ref, ns / total_ns, says) for ref, ns, says in parts if ns]


def _evidence(ref: str, value: float, says: str) -> ProfileEvidence:
    return ProfileEvidence(kind="profile", ref=ref, value=round(value, 4), says=f"{value:.1%} {says}")


def _bandwidth_evidence(findings: Findings) -> list[ProfileEvidence]:
    """Of the longest collective with a known size."""
    for position, collective in enumerate(findings.collectives):
        reached, size_bytes = collective.bus_bandwidth_gbytes_per_s, collective.message_bytes
        if reached is not None and size_bytes is not None:
            link = collective.link_gbytes_per_s
            beside = f" of the link's {link:.3g}" if link else ""
            size = f"{size_bytes / 1e6:.1f} MB"
            says = f"{collective.kind} of {size} reaches {reached:.1f} GB/s{beside} on the bus"
            ref = f"collectives[{position}].bus_bandwidth_gbytes_per_s"
            return [ProfileEvidence(kind="profile", ref=ref, value=round(reached, 3), says=says)]
    return []


def _roofline_evidence(findings: Findings) -> list[ProfileEvidence]:
    points = [point for rank in findings.profiles for point in rank.roofline if point.lost_ns is not None]
    if not points:
        return []
    worst = max(points, key=lambda point: point.lost_ns or 0.0)
    reached = worst.achieved_flops_per_s / (worst.roof_flops_per_s or 1.0)
    says = f"{worst.op} {worst.shape} ({worst.precision}) reaches {reached:.0%} of its {worst.bound} roof"
    return [ProfileEvidence(kind="roofline", ref="ranks[].roofline", value=round(reached, 4), says=says)]


def _weigh_confidence(findings: Findings, cause: Bottleneck, margin: float) -> tuple[float, list[str]]:
    """The product of each weakness's factor, and advice that would remove the weakness."""
    confidence, advice = _START * (0.75 + 0.25 * min(margin / _CLEAR_MARGIN, 1.0)), []
    for factor, remedy in _weaknesses(findings, cause):
        confidence *= factor
        advice.append(remedy)
    return round(confidence, 3), advice


def _weaknesses(findings: Findings, cause: Bottleneck) -> list[tuple[float, str]]:
    """Factor and remedy of each."""
    profiles, collectives = findings.profiles, findings.collectives
    world_size = max((profile.world_size or 1 for profile in profiles), default=1)
    steps = min((len(profile.steady_steps) for profile in profiles), default=0)
    has_shapes = any(profile.roofline for profile in profiles)
    is_torch = any(".json" in profile.file for profile in profiles)
    weaknesses = []
    if len(profiles) < world_size:
        factor = 0.75 if len(profiles) == 1 else 0.9
        weaknesses.append(
            (factor, f"profile more ranks at the same steps: {len(profiles)} of {world_size} were given")
        )
    if findings.num_unreadable:
        weaknesses.append((0.9, f"capture the {findings.num_unreadable} unreadable files again"))
    if steps == 0:
        weaknesses.append(
            (0.8, "mark steps (profiler.step()), so that warm-up can be separated from steady work")
        )
    elif steps == 1:
        weaknesses.append((0.85, "profile three or more steps: one does not show variation"))
    if not has_shapes and is_torch and cause in ("compute", "memory"):
        weaknesses.append(
            (0.8, "record shapes (record_shapes=True), so that kernels can be set on the roofline")
        )
    if is_torch and collectives and all(collective.message_bytes is None for collective in collectives):
        weaknesses.append(
            (0.95, "use PyTorch 2.3 or newer: its traces carry sizes and groups of collectives")
        )
    if any(profile.basis == "host" for profile in profiles):
        weaknesses.append(
            (0.9, "profile on accelerators: without device events the host's spans stand in for them")
        )
    return weaknesses
