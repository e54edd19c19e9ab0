"""The whole analysis of a folder of traces: what `asap diagnose --json` prints and a recommendation reads."""

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from tools.hardware import Device
from tools.scenario.spec import Result
from tools.trace.alignment import (
    AlignedCollectives,
    CollectiveSummary,
    Lateness,
    PipelineStages,
    Straggler,
    align,
    analyse_pipeline,
    find_stragglers,
    measure_lateness,
    summarise,
)
from tools.trace.breakdown import BreakdownUs, add_breakdowns
from tools.trace.causes import find_causes
from tools.trace.classify import CommunicationPatterns
from tools.trace.compare import PredictionComparison
from tools.trace.compute import split_compute
from tools.trace.diagnosis import Findings, ProfileDiagnosis, diagnose, weigh
from tools.trace.folder import (
    UNTRUSTED,
    FolderProfile,
    KeepTimeline,
    Progress,
    UnreadableFile,
    profile_folder,
)
from tools.trace.isolate import Check, ReaderLimits
from tools.trace.match import TraceFacts, TraceMatch, trace_facts
from tools.trace.rank_profile import RankProfile, RankReport, TopOp, find_device
from tools.trace.roofline import RoofReport
from tools.trace.waits import LateCollective, find_latest

MAX_DRAWN_RANKS = 64
_MAX_DRAWN_POINTS = 200
_MAX_COLLECTIVES = 8
_MAX_KERNELS = 10


class Profile(Result):
    """What a recommendation needs of a folder of traces: the measured diagnosis and the totals behind it."""

    step_time_s: float | None
    """Mean over ranks and steady steps; None if no steps are marked."""
    diagnosis: ProfileDiagnosis
    total: BreakdownUs
    ranks: int
    unreadable: list[UnreadableFile]
    stragglers: list[Straggler]
    collectives: list[CollectiveSummary]
    top_ops: list[TopOp]
    facts: TraceFacts | None = None
    match: TraceMatch | None = None
    """Against the scenario that the traces came with."""
    comparison: PredictionComparison | None = None
    """With the scenario's prediction, if the traces are of its job."""


class TraceReport(Result):
    """The JSON of `asap diagnose`."""

    ranks: list[RankReport]
    total: BreakdownUs
    collectives: list[CollectiveSummary]
    stragglers: list[Straggler]
    pipeline: PipelineStages | None
    unreadable: list[UnreadableFile]
    diagnosis: ProfileDiagnosis | None
    """None if no file could be read."""
    facts: TraceFacts | None = None
    """What the traces say of the job they were taken of."""


class Strip(Result):
    """What filled each stretch of a rank's timeline, in thousandths."""

    rank: int
    start_ms: float
    end_ms: float
    compute: list[int]
    exposed_communication: list[int]
    memory: list[int]


class Drawing(Result):
    """What figures show beyond the report."""

    strips: list[Strip]
    points: list[RoofReport]
    """The longest ops of all ranks."""
    lateness: Lateness | None
    latest: tuple[LateCollective, ...] = ()


class DrawnReport(TraceReport):
    """A report with what its figures need, as it is stored with an upload."""

    drawing: Drawing


@dataclass(frozen=True)
class TraceAnalysis:
    """The report, and the profiles that it was made from."""

    report: TraceReport
    profile: FolderProfile
    device: Device | None = None
    """What the user named in place of the traces' own."""

    def summary(self) -> Profile | None:
        """None if no file could be read."""
        report = self.report
        if report.diagnosis is None:
            return None
        return Profile(
            step_time_s=_step_time_s(self.profile.ranks),
            diagnosis=report.diagnosis,
            total=report.total,
            ranks=len(report.ranks),
            unreadable=report.unreadable,
            stragglers=report.stragglers,
            collectives=report.collectives[:_MAX_COLLECTIVES],
            top_ops=report.ranks[0].top_ops[:_MAX_KERNELS],
            facts=report.facts,
        )

    def drawn(self) -> DrawnReport:
        return DrawnReport(**dict(self.report), drawing=_draw(self.profile.ranks))


def analyse_folder(
    folder: Path,
    patterns: CommunicationPatterns | None = None,
    device: Device | None = None,
    progress: Progress | None = None,
    workers: int | None = None,
    limits: ReaderLimits | None = UNTRUSTED,
    check: Check | None = None,
    keep_timeline: KeepTimeline | None = None,
) -> TraceAnalysis:
    """Reads a folder of traces and diagnoses it; `device` replaces the accelerator that the traces name."""
    profile = profile_folder(folder, patterns, device, progress, workers, limits, check, keep_timeline)
    return TraceAnalysis(build_report(profile, device), profile, device)


def build_report(folder: FolderProfile, device: Device | None = None) -> TraceReport:
    """Runs every analysis that needs several ranks."""
    ranks = folder.ranks
    aligned = align(ranks)
    named = next((rank.device_name for rank in ranks if rank.device_name), None)
    accelerator = device or find_device(named)
    collectives = summarise(aligned, accelerator)
    stragglers = find_stragglers(aligned)
    pipeline = analyse_pipeline(ranks)
    shares = weigh(ranks, _waiting_ns(aligned), pipeline is not None)
    findings = Findings(
        ranks,
        shares,
        collectives,
        stragglers,
        len(folder.unreadable),
        find_causes(ranks, aligned, accelerator),
        split_compute(ranks),
    )
    return TraceReport(
        ranks=[rank.report() for rank in ranks],
        total=add_breakdowns([rank.breakdown for rank in ranks]).as_microseconds(),
        collectives=collectives,
        stragglers=stragglers,
        pipeline=pipeline,
        unreadable=folder.unreadable,
        diagnosis=diagnose(findings) if ranks else None,
        facts=trace_facts(ranks) if ranks else None,
    )


def _waiting_ns(aligned: list[AlignedCollectives]) -> float:
    """Sum over all ranks."""
    return float(sum(np.sum(group.waiting_ns) for group in aligned if group.waiting_ns is not None))


def _step_time_s(ranks: list[RankProfile]) -> float | None:
    means_ns = [
        fmean(step.breakdown.total_ns for step in rank.steady_steps) for rank in ranks if rank.steady_steps
    ]
    return fmean(means_ns) * 1e-9 if means_ns else None


def _draw(ranks: list[RankProfile]) -> Drawing:
    drawn = ranks[:MAX_DRAWN_RANKS]
    points = sorted((point for rank in ranks for point in rank.roofline), key=lambda point: -point.time_ns)
    strips = [
        Strip(
            rank=rank.rank,
            start_ms=rank.timeline.start_ns / 1e6,
            end_ms=rank.timeline.end_ns / 1e6,
            compute=rank.timeline.compute,
            exposed_communication=rank.timeline.exposed_communication,
            memory=rank.timeline.memory,
        )
        for rank in drawn
        if rank.timeline is not None
    ]
    aligned = align(drawn)
    return Drawing(
        strips=strips,
        points=[point.report() for point in points[:_MAX_DRAWN_POINTS]],
        lateness=measure_lateness(aligned),
        latest=tuple(find_latest(aligned)),
    )
