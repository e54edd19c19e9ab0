"""The profile of one rank: device, memory, top kernels and all per-rank analyses as one record.

Plain data, so it can cross processes, be written as a trial's summary and be read back.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from pydantic import Field

from tools.errors import InputError
from tools.hardware import Device, get_device
from tools.hardware.catalogue import find_reported
from tools.scenario.spec import ClosedModel
from tools.trace.breakdown import (
    Breakdown,
    BreakdownUs,
    StepProfile,
    Timeline,
    add_breakdowns,
    draw_timeline,
    measure_steps,
    occupy,
    variation_ratio,
)
from tools.trace.classify import (
    CLASS_NAMES,
    COMPUTE,
    OPTIMIZER_MARK,
    CommunicationPatterns,
    RankWork,
    classify,
)
from tools.trace.collectives import (
    CollectiveEvent,
    GroupTime,
    list_collectives,
    time_exposed_kinds,
    time_groups,
)
from tools.trace.host import HostProfile, HostReport, profile_host
from tools.trace.parts import MAX_MEAN_PARTS, REST, SUMMED, RankPart, StepPart, measure_parts
from tools.trace.record import MemoryCounter, RankTrace
from tools.trace.roofline import RoofPoint, RoofReport, place_on_roofline, worst_points

_MAX_POINTS = 200
_MAX_KERNELS = 10
_MAX_REPORTED = 5
GIB = 1 << 30
FORMAT = "asap-rank-profile-1"
NO_WORK = "no device events and no host ops in the trace"


def find_device(name: str | None) -> Device | None:
    """None when the trace names no device or one that the catalogue lacks."""
    if not name:
        return None
    try:
        return get_device(find_reported(name) or name)
    except InputError:
        return None


class MemoryReport(ClosedModel):
    """Allocated memory over time."""

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


def main_counter(counters: tuple[MemoryCounter, ...]) -> MemoryCounter:
    """The fullest accelerator's, or the host's if the trace has no accelerator."""
    return max(counters, key=lambda counter: (counter.is_accelerator, int(counter.allocated_bytes.max())))


def profile_memory(counters: tuple[MemoryCounter, ...]) -> MemoryProfile | None:
    """None when the profiler did not record memory."""
    if not counters:
        return None
    counter = main_counter(counters)
    stretches = np.array_split(np.arange(len(counter.time_ns)), min(_MAX_POINTS, len(counter.time_ns)))
    highest = [int(stretch[counter.allocated_bytes[stretch].argmax()]) for stretch in stretches]
    return MemoryProfile(
        is_accelerator=counter.is_accelerator,
        peak_allocated_bytes=int(counter.allocated_bytes.max()),
        peak_reserved_bytes=int(counter.reserved_bytes.max()),
        time_ns=(counter.time_ns[highest] - counter.time_ns[0]).tolist(),
        allocated_bytes=counter.allocated_bytes[highest].tolist(),
    )


class TopOp(ClosedModel):
    """All events of one name."""

    name: str
    work_class: str = Field(alias="class")
    count: int
    time_us: float
    share_of_total: float


class KernelTotal(msgspec.Struct, frozen=True):
    name: str
    work_class: str
    count: int
    time_ns: int


def list_top_kernels(trace: RankTrace, work: RankWork) -> list[KernelTotal]:
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


class StepHeader(ClosedModel):
    step: int
    is_warm_up: bool


class StepReport(BreakdownUs, StepHeader):
    """The breakdown of one step."""


class RankHeader(ClosedModel):
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
    """Only process groups whose ranks the trace lists."""
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
    parts: list[RankPart] = []
    """What the steady steps are made of, adding up to them."""
    notes: list[str] = []

    @property
    def steady_steps(self) -> list[StepProfile]:
        return [step for step in self.steps if not step.is_warm_up]

    @property
    def steady_breakdown(self) -> Breakdown:
        """Sum of the steps after warm-up, or the whole trace if no steps are marked."""
        steps = self.steady_steps
        return add_breakdowns([step.breakdown for step in steps]) if steps else self.breakdown

    def report(self) -> RankReport:
        """In the names and units of the JSON output."""
        total_ns = max(self.breakdown.total_ns, 1)
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
            top_ops=[
                TopOp(
                    name=kernel.name,
                    work_class=kernel.work_class,
                    count=kernel.count,
                    time_us=kernel.time_ns / 1000,
                    share_of_total=round(kernel.time_ns / total_ns, 4),
                )
                for kernel in self.top_kernels[:_MAX_REPORTED]
            ],
            roofline=[point.report() for point in worst_points(self.roofline)[:_MAX_REPORTED]],
            host=self.host.report(),
            memory=None if self.memory is None else self.memory.report(),
            notes=self.notes,
        )


def profile_rank(
    trace: RankTrace, patterns: CommunicationPatterns, device: Device | None = None
) -> RankProfile:
    """Runs every analysis that needs one rank only; `device` replaces the catalogue entry of the trace's."""
    work, distributed = classify(trace, patterns), trace.distributed
    profile = RankProfile(
        file=trace.file,
        rank=-1 if distributed.rank is None else distributed.rank,
        rank_source="none" if distributed.rank is None else "distributedInfo",
        world_size=distributed.world_size,
        basis=work.basis,
        device_name=trace.device_name,
        group_descriptions=distributed.group_descriptions,
        group_sizes={name: len(ranks) for name, ranks in distributed.groups.items()},
        num_work_events=len(work.spans),
        json_bytes=trace.json_bytes,
        breakdown=Breakdown(),
        memory=profile_memory(trace.memory),
        notes=[*trace.notes],
    )
    if not len(work.spans):
        profile.notes.append(NO_WORK)
        return profile
    occupancy = occupy(work, trace.launches)
    loading = trace.take_named(trace.annotations, patterns.data_loading.search).cover()
    profile.breakdown = occupancy.whole()
    profile.steps = measure_steps(trace, work, occupancy)
    profile.top_kernels = list_top_kernels(trace, work)
    profile.collectives = list_collectives(trace, work, occupancy, loading, patterns)
    profile.exposed_by_kind_ns = time_exposed_kinds(profile.collectives, occupancy.compute)
    profile.group_times = time_groups(profile.collectives, occupancy.compute)
    # Unions, because host ops contain one another.
    kernels = work.of_class(COMPUTE)
    profile.matrix_kernel_ns = trace.take_named(kernels, patterns.matrix_kernel.search).cover().total_ns
    profile.other_kernel_ns = occupancy.compute.total_ns - profile.matrix_kernel_ns
    # torch.optim leaves marks on the device's timeline, or on the host's.
    marks = trace.device_annotations if work.basis == "device" else trace.annotations
    inside = trace.take_named(marks, lambda name: name.startswith(OPTIMIZER_MARK)).cover()
    if len(inside.start_ns):
        computing_ns = occupancy.compute.between(inside.start_ns, inside.end_ns)
        profile.optimizer_kernel_ns = int(computing_ns.sum())
    profile.roofline = place_on_roofline(trace, work, device or find_device(trace.device_name))
    profile.host = profile_host(trace, work, occupancy, loading, patterns)
    profile.timeline = draw_timeline(occupancy)
    if trace.has_parts:
        profile.parts = measure_parts(trace, work, occupancy, profile.steps, profile.collectives)
    if work.basis == "host":
        profile.notes.append("no device events: host ops count as compute, host collectives as communication")
    else:
        names = (trace.names[number] for number in np.unique(kernels.name))
        if suspects := sorted(name[:60] for name in names if patterns.suspect_kernel.search(name))[:3]:
            profile.notes.append(
                "counted as compute, but may communicate (name it as a communication pattern): "
                + ", ".join(suspects)
            )
    return profile


def mean_parts(
    profiles: Sequence[RankProfile], by_step: bool = True, most: int = MAX_MEAN_PARTS
) -> list[StepPart]:
    """The parts of a step and rank, or of a rank's trace; only ranks whose steps were taken apart count.

    `most` are listed; the smaller ones are summed by kind.
    """
    taken = [profile for profile in profiles if profile.parts]
    steps = sum(len(profile.steady_steps) if by_step else 1 for profile in taken) or 1
    by_place: dict[tuple[str, ...], list[RankPart]] = defaultdict(list)
    for profile in taken:
        for part in profile.parts:
            by_place[part.kind, part.module, part.op, part.shape, part.kernel].append(part)
    parts = [
        StepPart(
            **dict(zip(("kind", "module", "op", "shape", "kernel"), place, strict=True)),
            count=sum(part.count for part in few) / steps,
            own_us=sum(part.own_ns for part in few) / steps / 1000,
            busy_us=sum(part.busy_ns for part in few) / steps / 1000,
            least_us=min((part.busy_ns / part.count for part in few if part.count), default=0.0) / 1000,
            message_bytes=sum(part.message_bytes for part in few) / steps,
        )
        for place, few in by_place.items()
    ]
    parts.sort(key=lambda part: -part.own_us)
    rest: dict[str, StepPart] = {}
    for small in parts[most:]:
        sums = {name: getattr(small, name) + getattr(rest.get(small.kind), name, 0.0) for name in SUMMED}
        places = {"module": "", "op": "", "shape": "", "kernel": REST, "least_us": 0.0}
        rest[small.kind] = small.model_copy(update={**places, **sums})
    return [*parts[:most], *rest.values()]
