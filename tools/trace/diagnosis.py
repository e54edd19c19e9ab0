"""The main cause of lost time, with its share of the step, its evidence and its confidence.

The cause is the term with the largest share. Waiting at collectives is attributed to what the late ranks
did, as a competing cause.
"""

from dataclasses import dataclass
from typing import Any

from tools.trace.breakdown import Breakdown, add_breakdowns
from tools.trace.rank_profile import RankProfile


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

    def ranked(self) -> list[tuple[str, float]]:
        """Causes, largest share first."""
        causes = ("compute", "memory", "communication", "pipeline", "host")
        return sorted(((name, float(getattr(self, name))) for name in causes), key=lambda one: -one[1])


def steady_breakdown(profile: RankProfile) -> Breakdown:
    """Of the steps after warm-up, or of everything when no steps are marked."""
    steps = profile.steady_steps
    return add_breakdowns([step.breakdown for step in steps]) if steps else profile.breakdown


def weigh(profiles: list[RankProfile], waiting_ns: float, has_pipeline: bool) -> Shares:
    """Shares over all ranks; `waiting_ns` is the sum of all ranks' waiting."""
    steady = add_breakdowns([steady_breakdown(profile) for profile in profiles])
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
    sloped = sum(point.time_ns for one in profiles for point in one.roofline if point.bound == "memory")
    return min(other + sloped, matrix + other) / (matrix + other) if matrix + other else 0.0


_CLOSE_RATIO = 0.6
"""A second cause with this much of the first one's share competes with it."""
_CLEAR_MARGIN = 0.25
_START = 0.95
_LATE_HOST = ("data loader", "host late")


@dataclass(frozen=True)
class Findings:
    """What the other analyses found."""

    profiles: list[RankProfile]
    shares: Shares
    collectives: list[dict[str, Any]]
    stragglers: list[dict[str, Any]]
    num_unreadable: int


def diagnose(findings: Findings) -> dict[str, Any]:
    """Plain data in the contract's shape, with competing causes beside."""
    ranked = findings.shares.ranked()
    cause, share = ranked[0]
    rooted = dict(ranked)
    root = _late_host_share(findings)
    rooted["host"] += root
    competing = [
        {"bottleneck": name, "severity": round(one, 4), "why": _why(name, findings)}
        for name, one in sorted(rooted.items(), key=lambda item: -item[1])
        if name != cause and one >= _CLOSE_RATIO * share
    ]
    confidence, advice = _weigh_confidence(findings, cause, share - ranked[1][1])
    return {
        "bottleneck": cause,
        "severity": round(share, 4),
        "confidence": confidence,
        "summary": _why(cause, findings),
        "shares": {name: round(one, 4) for name, one in ranked},
        "evidence": _collect_evidence(findings),
        "competing_causes": competing,
        "next_to_profile": advice,
    }


def _late_host_share(findings: Findings) -> float:
    """Share of the step that all ranks wait because a straggler's host was late."""
    late = sum(one["share_of_lateness"] for one in findings.stragglers if one["cause"].startswith(_LATE_HOST))
    return findings.shares.waiting * min(float(late), 1.0)


def _why(cause: str, findings: Findings) -> str:
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
    if all(one["waiting_us"] is None for one in findings.collectives):
        return "waiting cannot be told from transfer without the other ranks"
    late = ", ".join(str(rank) for rank in sorted(one["rank"] for one in findings.stragglers))
    blame = f" (rank {late})" if late else ""
    return f"{findings.shares.waiting:.0%} of the step is waiting for late ranks{blame}"


def _collect_evidence(findings: Findings) -> list[dict[str, Any]]:
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
    if any(one["waiting_us"] is not None for one in findings.collectives):
        says = "waits in collectives for late ranks"
        evidence.append(_evidence("collectives[].waiting_us", shares.waiting, says))
    for one in findings.stragglers[:4]:
        says = f"of collectives see rank {one['rank']} arrive last ({one['cause']})"
        evidence.append(_evidence(f"stragglers[rank={one['rank']}]", one["arrives_last_ratio"], says))
    return evidence + _bandwidth_evidence(findings) + _roofline_evidence(findings)


def _idle_evidence(findings: Findings, total_ns: int) -> list[dict[str, Any]]:
    steady = findings.shares.steady
    if all(one.basis == "host" for one in findings.profiles):
        return [_evidence("total.idle_us", steady.idle_ns / total_ns, "runs neither an op nor a collective")]
    parts = (
        ("total.idle_host_us", steady.idle_host_ns, "is idle because the launch came late"),
        ("total.idle_waiting_us", steady.idle_waiting_ns, "is idle with work launched"),
        ("total.idle_unknown_us", steady.idle_unknown_ns, "is idle, and the trace does not tell why"),
    )
    return [_evidence(ref, ns / total_ns, says) for ref, ns, says in parts if ns]


def _evidence(ref: str, value: float, says: str) -> dict[str, Any]:
    return {"kind": "profile", "ref": ref, "value": round(value, 4), "says": f"{value:.1%} {says}"}


def _bandwidth_evidence(findings: Findings) -> list[dict[str, Any]]:
    entry = next((one for one in findings.collectives if one["bus_bandwidth_gbytes_per_s"] is not None), None)
    if entry is None:
        return []
    reached, link = entry["bus_bandwidth_gbytes_per_s"], entry["link_gbytes_per_s"]
    beside = f" of the link's {link:.3g}" if link else ""
    size = f"{entry['message_bytes'] / 1e6:.1f} MB"
    says = f"{entry['kind']} of {size} reaches {reached:.1f} GB/s{beside} on the bus"
    position = findings.collectives.index(entry)
    ref = f"collectives[{position}].bus_bandwidth_gbytes_per_s"
    return [{"kind": "profile", "ref": ref, "value": round(reached, 3), "says": says}]


def _roofline_evidence(findings: Findings) -> list[dict[str, Any]]:
    points = [point for one in findings.profiles for point in one.roofline if point.lost_ns is not None]
    if not points:
        return []
    worst = max(points, key=lambda point: point.lost_ns or 0.0)
    reached = worst.achieved_flops_per_s / (worst.roof_flops_per_s or 1.0)
    says = f"{worst.op} {worst.shape} ({worst.precision}) reaches {reached:.0%} of its {worst.bound} roof"
    return [{"kind": "roofline", "ref": "ranks[].roofline", "value": round(reached, 4), "says": says}]


def _weigh_confidence(findings: Findings, cause: str, margin: float) -> tuple[float, list[str]]:
    """The product of what each weakness leaves, and what would mend it."""
    confidence, advice = _START * (0.75 + 0.25 * min(margin / _CLEAR_MARGIN, 1.0)), []
    for factor, mend in _weaknesses(findings, cause):
        confidence *= factor
        advice.append(mend)
    return round(confidence, 3), advice


def _weaknesses(findings: Findings, cause: str) -> list[tuple[float, str]]:
    profiles = findings.profiles
    world_size = max((one.world_size or 1 for one in profiles), default=1)
    steps = min((len(one.steady_steps) for one in profiles), default=0)
    has_shapes = any(one.roofline for one in profiles)
    found = []
    if len(profiles) < world_size:
        factor = 0.75 if len(profiles) == 1 else 0.9
        found.append(
            (factor, f"profile more ranks at the same steps: {len(profiles)} of {world_size} were given")
        )
    if findings.num_unreadable:
        found.append((0.9, f"capture the {findings.num_unreadable} unreadable files again"))
    if steps == 0:
        found.append((0.8, "mark steps (profiler.step()), so that warm-up can be told from steady work"))
    elif steps == 1:
        found.append((0.85, "profile three or more steps: one does not show variation"))
    is_torch = any(".json" in one.file for one in profiles)
    if not has_shapes and is_torch and cause in ("compute", "memory"):
        found.append((0.8, "record shapes (record_shapes=True), so that kernels can be set on the roofline"))
    unsized = findings.collectives and all(one["message_bytes"] is None for one in findings.collectives)
    if unsized and is_torch:
        found.append((0.95, "use PyTorch 2.3 or newer: its traces carry sizes and groups of collectives"))
    if any(one.basis == "host" for one in profiles):
        found.append(
            (0.9, "profile on accelerators: without device events the host's spans stand in for them")
        )
    return found
