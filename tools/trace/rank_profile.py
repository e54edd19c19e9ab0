"""The profile of one rank: device, memory, top kernels and all per-rank analyses as one record.

Plain data, so it can cross processes, be written as a trial's summary and be read back.
"""

import re
from typing import Literal

import msgspec
import numpy as np
from pydantic import Field

from tools.errors import InputError
from tools.hardware import Device, get_device
from tools.scenario.spec import Result
from tools.trace.breakdown import (
    Breakdown,
    BreakdownUs,
    Occupancy,
    StepProfile,
    Timeline,
    add_breakdowns,
    draw_timeline,
    measure_steps,
    occupy,
    variation_ratio,
)
from tools.trace.classify import COMPUTE, OPTIMIZER_MARK, CommunicationPatterns, Work, classify
from tools.trace.collectives import (
    CollectiveEvent,
    GroupTime,
    list_collectives,
    time_exposed_kinds,
    time_groups,
)
from tools.trace.host import HostProfile, HostReport, find_loading, profile_host
from tools.trace.record import MemoryCounter, RankTrace, cover, match_names
from tools.trace.roofline import RoofPoint, RoofReport, place_on_roofline, worst_points

_PATTERNS = (
    (r"A100-SXM.*80", "a100-sxm-80gb"),
    (r"A100-SXM\d?-40GB|A100-PG509", "a100-sxm-40gb"),
    (r"A800-SXM", "a800-sxm-80gb"),
    (r"H100 80GB HBM3|H100-SXM|H100 SXM", "h100-sxm-80gb"),
    (r"H100 PCIe", "h100-pcie-80gb"),
    (r"\bH200", "h200-sxm-141gb"),
    (r"GB300", "gb300"),
    (r"GB200", "gb200"),
    (r"B300", "b300"),
    (r"B200", "b200"),
    (r"V100-SXM\d?", "v100-sxm-32gb"),
    (r"MI250", "mi250x-gcd"),
    (r"MI300X", "mi300x"),
    (r"MI325X", "mi325x"),
    (r"MI355X", "mi355x"),
    (r"TPU ?v4", "tpu-v4"),
    (r"TPU ?v5 ?(e|lite)", "tpu-v5e"),
    (r"TPU ?v5 ?p?", "tpu-v5p"),
    (r"TPU ?v6 ?(e|lite)", "tpu-v6e"),
    (r"TPU ?(v?7x)", "tpu7x"),
)


def find_device(name: str | None) -> Device | None:
    """None when the trace names no device or one that the catalogue lacks."""
    if not name:
        return None
    known = next((ours for pattern, ours in _PATTERNS if re.search(pattern, name, re.IGNORECASE)), name)
    try:
        return get_device(known)
    except InputError:
        return None


_MAX_POINTS = 200


class MemoryReport(Result):
    """Allocated memory over time, in the units of the JSON output."""

    on: Literal["accelerator", "host"]
    peak_allocated_gib: float
    peak_reserved_gib: float
    timeline_us: list[float]
    timeline_allocated_gib: list[float]


class MemoryProfile(msgspec.Struct, frozen=True):
    """Memory of one rank's accelerator, or of its host if the trace has no accelerator."""

    is_accelerator: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    time_ns: list[int]
    """Since the first event; each point is the highest of its stretch."""
    allocated_bytes: list[int]

    def report(self) -> MemoryReport:
        return MemoryReport(
            on="accelerator" if self.is_accelerator else "host",
            peak_allocated_gib=self.peak_allocated_bytes / GIB,
            peak_reserved_gib=self.peak_reserved_bytes / GIB,
            timeline_us=[ns / 1000 for ns in self.time_ns],
            timeline_allocated_gib=[size / GIB for size in self.allocated_bytes],
        )


def profile_memory(counters: tuple[MemoryCounter, ...]) -> MemoryProfile | None:
    """None when the profiler did not record memory."""
    if not counters:
        return None
    counter = max(counters, key=lambda counter: (counter.is_accelerator, int(counter.allocated_bytes.max())))
    stretches = np.array_split(np.arange(len(counter.time_ns)), min(_MAX_POINTS, len(counter.time_ns)))
    highest = [int(stretch[counter.allocated_bytes[stretch].argmax()]) for stretch in stretches]
    return MemoryProfile(
        is_accelerator=counter.is_accelerator,
        peak_allocated_bytes=int(counter.allocated_bytes.max()),
        peak_reserved_bytes=int(counter.reserved_bytes.max()),
        time_ns=(counter.time_ns[highest] - counter.time_ns[0]).tolist(),
        allocated_bytes=counter.allocated_bytes[highest].tolist(),
    )


CLASS_NAMES = ("compute", "communication", "memory")
_MAX_KERNELS = 10
_MAX_REPORTED = 5
GIB = 1 << 30


class TopOp(Result):
    """All events of one name, in the units of the JSON output."""

    name: str
    work_class: str = Field(alias="class")
    count: int
    time_us: float
    share_of_total: float


class KernelTotal(msgspec.Struct, frozen=True):
    """All events of one name."""

    name: str
    work_class: str
    count: int
    time_ns: int


def list_top_kernels(trace: RankTrace, work: Work) -> list[KernelTotal]:
    """The ten with the largest summed time, longest first."""
    time_ns = np.zeros(len(trace.names), dtype=np.int64)
    np.add.at(time_ns, work.spans.name, work.spans.duration_ns)
    count = np.bincount(work.spans.name, minlength=len(trace.names))
    work_class = np.zeros(len(trace.names), dtype=np.int64)
    work_class[work.spans.name] = work.work_class
    longest = np.argsort(-time_ns, kind="stable")[:_MAX_KERNELS]
    return [
        KernelTotal(
            trace.names[number], CLASS_NAMES[work_class[number]], int(count[number]), int(time_ns[number])
        )
        for number in longest
        if count[number]
    ]


class StepHeader(Result):
    step: int
    is_warm_up: bool


class StepReport(BreakdownUs, StepHeader):
    """The breakdown of one step."""


class RankHeader(Result):
    rank: int
    rank_source: str
    """`distributedInfo`, `file name` or `order`."""
    file: str
    device: str | None
    basis: str
    """`device`, or `host` if the trace has no device events."""
    num_events: int


class RankReport(BreakdownUs, RankHeader):
    """One entry of `ranks` in the JSON output: the breakdown of the whole trace, and what explains it."""

    steps: list[StepReport]
    step_variation_ratio: float | None
    top_ops: list[TopOp]
    roofline: list[RoofReport]
    host: HostReport
    memory: MemoryReport | None
    notes: list[str]


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
    group_sizes: dict[str, int] = {}
    """Of the process groups whose ranks the trace lists."""
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
    """Compute time inside `Optimizer.step` marks; None if the trace has none."""
    roofline: list[RoofPoint] = []
    host: HostProfile = msgspec.field(default_factory=HostProfile)
    memory: MemoryProfile | None = None
    timeline: Timeline | None = None
    notes: list[str] = []

    @property
    def steady_steps(self) -> list[StepProfile]:
        """The steps after warm-up."""
        return [step for step in self.steps if not step.is_warm_up]

    @property
    def steady_breakdown(self) -> Breakdown:
        """Sum of the steps after warm-up, or the whole trace if no steps are marked."""
        steps = self.steady_steps
        return add_breakdowns([step.breakdown for step in steps]) if steps else self.breakdown

    def report(self) -> RankReport:
        """In the names and units of the JSON output."""
        return RankReport(
            rank=self.rank,
            rank_source=self.rank_source,
            file=self.file,
            device=self.device_name,
            basis=self.basis,
            num_events=self.num_work_events,
            **dict(self.breakdown.as_microseconds()),
            steps=[
                StepReport(
                    step=step.number, is_warm_up=step.is_warm_up, **dict(step.breakdown.as_microseconds())
                )
                for step in self.steps
            ],
            step_variation_ratio=variation_ratio(self.steps),
            top_ops=self._top_ops(),
            roofline=[point.report() for point in worst_points(self.roofline)[:_MAX_REPORTED]],
            host=self.host.report(),
            memory=None if self.memory is None else self.memory.report(),
            notes=self.notes,
        )

    def _top_ops(self) -> list[TopOp]:
        total_ns = max(self.breakdown.total_ns, 1)
        return [
            TopOp(
                name=kernel.name,
                work_class=kernel.work_class,
                count=kernel.count,
                time_us=kernel.time_ns / 1000,
                share_of_total=round(kernel.time_ns / total_ns, 4),
            )
            for kernel in self.top_kernels[:_MAX_REPORTED]
        ]


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
        group_sizes={name: len(ranks) for name, ranks in trace.distributed.groups.items()},
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
    profile: RankProfile, trace: RankTrace, work: Work, patterns: CommunicationPatterns, device: Device | None
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
