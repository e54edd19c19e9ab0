"""The whole analysis of a folder as plain data: what `asap diagnose --json` prints and the agent reads."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tools.hardware import Device
from tools.trace.breakdown import add_breakdowns, variation_ratio
from tools.trace.classify import CommunicationPatterns
from tools.trace.collectives import AlignedCollectives, align, analyse_pipeline, find_stragglers, summarise
from tools.trace.diagnosis import Findings, diagnose, weigh
from tools.trace.folder import FolderProfile, Progress, profile_folder
from tools.trace.rank_profile import RankProfile, find_device
from tools.trace.roofline import RoofPoint

_TOP = 5


@dataclass(frozen=True)
class TraceReport:
    """The plain data, and the profiles it was made from for those who draw."""

    data: dict[str, Any]
    profile: FolderProfile
    device: Device | None = None
    """What the user named in place of the traces' own."""


def analyse_folder(
    folder: Path,
    patterns: CommunicationPatterns | None = None,
    device: Device | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
) -> TraceReport:
    """Reads a folder of traces and diagnoses it; `device` replaces the accelerator that the traces name."""
    profile = profile_folder(folder, patterns, device, progress, workers)
    return TraceReport(build_report(profile, device), profile, device)


def build_report(folder: FolderProfile, device: Device | None = None) -> dict[str, Any]:
    """Every analysis over several ranks, in the contract's shape."""
    ranks = folder.ranks
    aligned = align(ranks)
    named = next((one.device_name for one in ranks if one.device_name), None)
    collectives = summarise(aligned, device or find_device(named))
    stragglers = find_stragglers(aligned)
    pipeline = analyse_pipeline(ranks)
    shares = weigh(ranks, _waiting_ns(aligned), pipeline is not None)
    findings = Findings(ranks, shares, collectives, stragglers, len(folder.unreadable))
    return {
        "ranks": [describe_rank(rank) for rank in ranks],
        "total": add_breakdowns([rank.breakdown for rank in ranks]).as_microseconds(),
        "collectives": collectives,
        "stragglers": stragglers,
        "pipeline": pipeline,
        "unreadable": [{"file": file, "reason": reason} for file, reason in folder.unreadable],
        "diagnosis": diagnose(findings) if ranks else None,
    }


def _waiting_ns(aligned: list[AlignedCollectives]) -> float:
    """Of all ranks together."""
    return float(sum(np.sum(one.waiting_ns) for one in aligned if one.waiting_ns is not None))


def describe_rank(profile: RankProfile) -> dict[str, Any]:
    """One entry of `ranks`."""
    return {
        "rank": profile.rank,
        "rank_source": profile.rank_source,
        "file": profile.file,
        "device": profile.device_name,
        "basis": profile.basis,
        "num_events": profile.num_work_events,
        **profile.breakdown.as_microseconds(),
        "steps": [
            {"step": step.number, "is_warm_up": step.is_warm_up, **step.breakdown.as_microseconds()}
            for step in profile.steps
        ],
        "step_variation_ratio": variation_ratio(profile.steps),
        "top_ops": _top_ops(profile),
        "roofline": [describe_point(point) for point in worst_points(profile.roofline)],
        "host": _describe_host(profile),
        "memory": _describe_memory(profile),
        "notes": profile.notes,
    }


def _top_ops(profile: RankProfile) -> list[dict[str, Any]]:
    total = max(profile.breakdown.total_ns, 1)
    return [
        {
            "name": one.name,
            "class": one.work_class,
            "count": one.count,
            "time_us": one.time_ns / 1000,
            "share_of_total": round(one.time_ns / total, 4),
        }
        for one in profile.top_kernels[:_TOP]
    ]


def worst_points(points: list[RoofPoint]) -> list[RoofPoint]:
    """The five that lose most against the roof; the five longest when there is no roof."""
    return sorted(points, key=lambda point: -(point.lost_ns if point.lost_ns is not None else point.time_ns))[
        :_TOP
    ]


def describe_point(point: RoofPoint) -> dict[str, Any]:
    """One op of the roofline in the units people read."""
    roof = point.roof_flops_per_s
    return {
        "op": point.op,
        "shape": point.shape,
        "precision": point.precision,
        "count": point.count,
        "time_us": point.time_ns / 1000,
        "achieved_tflops": point.achieved_flops_per_s / 1e12,
        "intensity_flops_per_byte": point.intensity,
        "roof_tflops": None if roof is None else roof / 1e12,
        "bound": point.bound,
        "lost_us": None if point.lost_ns is None else point.lost_ns / 1000,
    }


def _describe_host(profile: RankProfile) -> dict[str, Any]:
    host = profile.host
    return {
        "launches": host.launches,
        "launch_mean_us": host.launch_time_ns / max(host.launches, 1) / 1000,
        "queue_delay_median_us": host.queue_delay_median_ns / 1000,
        "queue_depth_median": host.queue_depth_median,
        "synchronisations": host.synchronisations,
        "synchronisation_us": host.synchronisation_ns / 1000,
        "data_loading_us": host.data_loading_ns / 1000,
        "data_loading_idle_us": host.data_loading_idle_ns / 1000,
        "small_kernel_ratio": host.small_kernels / max(host.kernels, 1),
        "small_kernel_storms": host.storms,
        "storm_kernels": host.storm_kernels,
        "storm_span_us": host.storm_span_ns / 1000,
        "storm_busy_us": host.storm_busy_ns / 1000,
    }


def _describe_memory(profile: RankProfile) -> dict[str, Any] | None:
    memory = profile.memory
    if memory is None:
        return None
    return {
        "on": "accelerator" if memory.is_accelerator else "host",
        "peak_allocated_gib": memory.peak_allocated_bytes / 2**30,
        "peak_reserved_gib": memory.peak_reserved_bytes / 2**30,
        "timeline_us": [ns / 1000 for ns in memory.time_ns],
        "timeline_allocated_gib": [size / 2**30 for size in memory.allocated_bytes],
    }
