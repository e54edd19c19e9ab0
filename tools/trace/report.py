"""The whole analysis of a folder of traces: what `asap diagnose --json` prints and a recommendation reads."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.hardware import Device
from tools.scenario.spec import ClosedModel
from tools.trace.alignment import CollectiveSummary, PipelineStages, align, analyse_pipeline, summarise
from tools.trace.breakdown import BreakdownUs, add_breakdowns
from tools.trace.causes import find_causes
from tools.trace.classify import CommunicationPatterns
from tools.trace.compare import PredictionComparison
from tools.trace.diagnosis import Findings, ProfileDiagnosis, diagnose
from tools.trace.folder import (
    UNTRUSTED,
    FileProgress,
    FolderProfile,
    KeepTimeline,
    UnreadableFile,
    profile_folder,
)
from tools.trace.isolate import Check, ReaderLimits
from tools.trace.match import TraceFacts, TraceMatch, trace_facts
from tools.trace.overview import pack_overview
from tools.trace.parts import StepPart
from tools.trace.rank_profile import RankProfile, RankReport, TopOp, find_device, mean_parts
from tools.trace.roofline import RoofReport
from tools.trace.waits import (
    LateCollective,
    Lateness,
    Straggler,
    find_latest,
    find_stragglers,
    measure_lateness,
)

MAX_DRAWN_RANKS = 64
_MAX_DRAWN_POINTS = 200
_MAX_COLLECTIVES = 8
_MAX_KERNELS = 10


class Profile(ClosedModel):
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


class TraceReport(ClosedModel):
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


class Strip(ClosedModel):
    """What filled each stretch of a rank's timeline, in thousandths."""

    rank: int
    start_ms: float
    end_ms: float
    compute: list[int]
    exposed_communication: list[int]
    memory: list[int]


class Drawing(ClosedModel):
    """What figures show beyond the report."""

    strips: list[Strip]
    points: list[RoofReport]
    """The longest ops of all ranks."""
    lateness: Lateness | None
    latest: tuple[LateCollective, ...] = ()
    parts: tuple[StepPart, ...] = ()
    """What the mean step is made of; empty in reports of release 0.2."""


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
        if report.diagnosis is None or report.facts is None:
            return None
        return Profile(
            step_time_s=report.facts.step_time_s,
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

    def overview(self) -> bytes:
        """All ranks at a glance, as a browser draws them."""
        return gzip.compress(pack_overview(self.profile.ranks, align(self.profile.ranks)), 5, mtime=0)


def analyse_folder(
    folder: Path,
    patterns: CommunicationPatterns | None = None,
    device: Device | None = None,
    progress: FileProgress | None = None,
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
    pipeline = analyse_pipeline(ranks)
    findings = Findings(
        profiles=ranks,
        aligned=aligned,
        collectives=summarise(aligned, accelerator),
        stragglers=find_stragglers(aligned),
        causes=find_causes(ranks, aligned, accelerator),
        has_pipeline=pipeline is not None,
        num_unreadable=len(folder.unreadable),
    )
    return TraceReport(
        ranks=[rank.report() for rank in ranks],
        total=add_breakdowns([rank.breakdown for rank in ranks]).as_microseconds(),
        collectives=findings.collectives,
        stragglers=findings.stragglers,
        pipeline=pipeline,
        unreadable=folder.unreadable,
        diagnosis=diagnose(findings) if ranks else None,
        facts=trace_facts(ranks) if ranks else None,
    )


def _draw(ranks: Sequence[RankProfile]) -> Drawing:
    drawn = ranks[:MAX_DRAWN_RANKS]
    aligned = align(drawn)
    points = sorted((point for rank in ranks for point in rank.roofline), key=lambda point: -point.time_ns)
    return Drawing(
        strips=[
            Strip(
                rank=rank.rank,
                start_ms=timeline.start_ns / 1e6,
                end_ms=timeline.end_ns / 1e6,
                compute=timeline.compute,
                exposed_communication=timeline.exposed_communication,
                memory=timeline.memory,
            )
            for rank in drawn
            if (timeline := rank.timeline) is not None
        ],
        points=[point.report() for point in points[:_MAX_DRAWN_POINTS]],
        lateness=measure_lateness(aligned),
        latest=tuple(find_latest(aligned)),
        parts=tuple(mean_parts(ranks)),
    )
