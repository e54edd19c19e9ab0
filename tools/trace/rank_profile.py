"""The profile record of one rank: every format ends here, with the same terms.

Plain data, so that it can cross a process, be written as the summary of a trial and be read again. What
needs several ranks (waiting, stragglers, diagnosis) starts from a list of these.
"""

import msgspec
import numpy as np

from tools.hardware import Device
from tools.trace.breakdown import Breakdown, Occupancy, occupy
from tools.trace.classify import COMPUTE, Work, classify
from tools.trace.collective_events import CollectiveEvent, list_collectives
from tools.trace.devices import find_device
from tools.trace.group_times import GroupTime, time_exposed_kinds, time_groups
from tools.trace.host import HostProfile, find_loading, profile_host
from tools.trace.intervals import cover
from tools.trace.memory import MemoryProfile, profile_memory
from tools.trace.name_match import match_names
from tools.trace.op_names import OPTIMIZER_MARK
from tools.trace.patterns import CommunicationPatterns
from tools.trace.record import RankTrace
from tools.trace.roofline import RoofPoint, place_on_roofline
from tools.trace.steps import StepProfile, measure_steps
from tools.trace.timeline import Timeline, draw_timeline
from tools.trace.top_kernels import KernelTotal, list_top_kernels

FORMAT = "asap-rank-profile-1"
NO_WORK = "no device events and no host ops in the trace"


class RankProfile(msgspec.Struct, kw_only=True):
    """What is known of one rank."""

    format: str = FORMAT
    file: str
    rank: int = -1
    rank_source: str = "none"
    """`distributedInfo`, `file name` or `order`."""
    world_size: int | None = None
    basis: str
    """`device`, or `host` when the trace has no device events."""
    device_name: str | None = None
    group_descriptions: dict[str, str] = {}
    num_work_events: int = 0
    json_bytes: int = 0
    breakdown: Breakdown
    steps: list[StepProfile] = []
    top_kernels: list[KernelTotal] = []
    collectives: list[CollectiveEvent] = []
    exposed_by_kind_ns: dict[str, int] = {}
    group_times: list[GroupTime] = []
    matrix_kernel_ns: int = 0
    other_kernel_ns: int = 0
    """Time with a matrix product or the like running, and with other compute kernels only."""
    optimizer_kernel_ns: int | None = None
    """Compute time inside `Optimizer.step` marks; None where the trace has none."""
    roofline: list[RoofPoint] = []
    host: HostProfile = msgspec.field(default_factory=HostProfile)
    memory: MemoryProfile | None = None
    timeline: Timeline | None = None
    notes: list[str] = []

    @property
    def steady_steps(self) -> list[StepProfile]:
        """The steps after warm-up."""
        return [step for step in self.steps if not step.is_warm_up]


def profile_rank(
    trace: RankTrace, patterns: CommunicationPatterns, device: Device | None = None
) -> RankProfile:
    """Runs every analysis that needs one rank only; `device` replaces the catalogue entry of the trace's."""
    work = classify(trace, patterns)
    profile = RankProfile(
        file=trace.file,
        rank=trace.distributed.rank if trace.distributed.rank is not None else -1,
        rank_source="none" if trace.distributed.rank is None else "distributedInfo",
        world_size=trace.distributed.world_size,
        basis=work.basis,
        device_name=trace.device_name,
        group_descriptions=trace.distributed.group_descriptions,
        num_work_events=len(work.spans),
        json_bytes=trace.json_bytes,
        breakdown=Breakdown(),
        memory=profile_memory(trace.memory),
        notes=[*trace.notes, *_notes(trace, work, patterns)],
    )
    if len(work.spans):
        _analyse(profile, trace, work, patterns, device or find_device(trace.device_name))
    return profile


def _analyse(
    profile: RankProfile,
    trace: RankTrace,
    work: Work,
    patterns: CommunicationPatterns,
    device: Device | None,
) -> None:
    occupancy = occupy(work, trace.launches)
    start_ns, end_ns = int(work.spans.start_ns.min()), int(work.spans.end_ns.max())
    loading = find_loading(trace, patterns)
    profile.breakdown = occupancy.breakdown(start_ns, end_ns)
    profile.steps = measure_steps(trace, work, occupancy)
    profile.top_kernels = list_top_kernels(trace, work)
    profile.collectives = list_collectives(trace, work, occupancy, loading, patterns)
    profile.exposed_by_kind_ns = time_exposed_kinds(profile.collectives, occupancy.compute)
    profile.group_times = time_groups(profile.collectives, occupancy.compute)
    profile.matrix_kernel_ns, profile.other_kernel_ns = _split_kernels(trace, work, patterns)
    profile.optimizer_kernel_ns = _time_optimizer(trace, work, occupancy)
    profile.roofline = place_on_roofline(trace, work, device)
    profile.host = profile_host(trace, work, occupancy, loading)
    profile.timeline = draw_timeline(occupancy, start_ns, end_ns)


def _split_kernels(trace: RankTrace, work: Work, patterns: CommunicationPatterns) -> tuple[int, int]:
    kernels = work.of_class(COMPUTE)
    is_matrix = match_names(trace.names, kernels, patterns.matrix_kernel.search)
    matrix = kernels.take(is_matrix)
    # Unions, because host ops contain one another.
    matrix_ns = cover(matrix.start_ns, matrix.end_ns).total_ns
    return matrix_ns, cover(kernels.start_ns, kernels.end_ns).total_ns - matrix_ns


def _time_optimizer(trace: RankTrace, work: Work, occupancy: Occupancy) -> int | None:
    """Computing inside the marks that torch.optim leaves on the device's timeline, or on the host's."""
    marks = trace.device_annotations if work.basis == "device" else trace.annotations
    steps = marks.take(match_names(trace.names, marks, lambda name: name.startswith(OPTIMIZER_MARK)))
    if not len(steps):
        return None
    inside = cover(steps.start_ns, steps.end_ns)
    return int(occupancy.compute.between(inside.start_ns, inside.end_ns).sum())


def _notes(trace: RankTrace, work: Work, patterns: CommunicationPatterns) -> list[str]:
    notes = []
    if not len(work.spans):
        notes.append(NO_WORK)
    elif work.basis == "host":
        notes.append("no device events: host ops count as compute, host collectives as communication")
    computing = {trace.names[number] for number in np.unique(work.spans.name[work.work_class == COMPUTE])}
    suspects = sorted(name for name in computing if patterns.suspect_kernel.search(name))
    if suspects and work.basis == "device":
        shown = ", ".join(name[:60] for name in suspects[:3])
        notes.append(f"counted as compute, but may communicate (name it as a communication pattern): {shown}")
    return notes
