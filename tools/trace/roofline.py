"""Matrix multiplications and attention on the device's roofline.

A kernel belongs to the op whose host span was open on the launching thread when it was launched; an op's
time is the sum of its kernels. Achieved rates need only the trace; the roof (Williams, Waterman,
Patterson 2009: min(peak, intensity × memory bandwidth)) needs the device's catalogue entry. Ops without
shapes are not here.
"""

from collections import defaultdict
from typing import Annotated

import msgspec
import numpy as np

from tools.hardware import Device
from tools.trace.classify import COMPUTE, Work
from tools.trace.flops import OpWork, find_work
from tools.trace.links import find_enclosing, find_launches
from tools.trace.record import Integers, RankTrace

# A summary may come from anywhere, and these are divided by.
PositiveInt = Annotated[int, msgspec.Meta(gt=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, lt=1e40)]


class RoofPoint(msgspec.Struct, frozen=True):
    """All calls of one op with one shape on one rank."""

    op: str
    shape: str
    precision: str
    count: int
    time_ns: PositiveInt
    flops: PositiveFloat
    """Of one call."""
    moved_bytes: PositiveFloat
    """Of one call."""
    roof_flops_per_s: PositiveFloat | None = None
    """Reachable at this intensity; None without a catalogue entry."""
    peak_flops_per_s: PositiveFloat | None = None
    dims: tuple[int, ...] = ()
    """As in `OpWork`."""

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes

    @property
    def achieved_flops_per_s(self) -> float:
        return self.flops * self.count / (self.time_ns * 1e-9)

    @property
    def bound(self) -> str | None:
        """`compute` under the flat part of the roof, `memory` under the slope."""
        if self.roof_flops_per_s is None or self.peak_flops_per_s is None:
            return None
        return "compute" if self.roof_flops_per_s >= self.peak_flops_per_s else "memory"

    @property
    def lost_ns(self) -> float | None:
        """Time above what the roof allows."""
        if self.roof_flops_per_s is None:
            return None
        return max(0.0, self.time_ns - self.flops * self.count / self.roof_flops_per_s * 1e9)


def place_on_roofline(trace: RankTrace, work: Work, device: Device | None) -> list[RoofPoint]:
    """One point per op, shape and precision, longest first."""
    time_ns, count = _time_by_op(trace, work)
    sums: dict[tuple[str, OpWork], list[int]] = defaultdict(lambda: [0, 0])
    for position, arguments in trace.host_op_arguments.items():
        name = trace.names[trace.host_ops.name[position]]
        done = find_work(name, arguments) if count[position] and time_ns[position] else None
        if done is not None:
            entry = sums[name, done]
            entry[0] += 1
            entry[1] += int(time_ns[position])
    points = [_point(name, done, *entry) for (name, done), entry in sums.items()]
    return sorted(under_roof(points, device), key=lambda point: -point.time_ns)


def under_roof(points: list[RoofPoint], device: Device | None) -> list[RoofPoint]:
    """The same points with the roof of a device; as they are without one."""
    if device is None:
        return points
    roofed = [_with_roof(point, device, point.precision) for point in points]
    # float32 tensors multiplied faster than the fp32 peak went through the TF32 units.
    if not any(_beats_fp32(point) for point in roofed):
        return roofed
    return [_with_roof(one, device, "tf32") if one.precision == "fp32" else one for one in roofed]


def _beats_fp32(point: RoofPoint) -> bool:
    peak = point.peak_flops_per_s
    return point.precision == "fp32" and peak is not None and point.achieved_flops_per_s > peak


def _with_roof(point: RoofPoint, device: Device, precision: str) -> RoofPoint:
    """Unchanged where the device has no peak in this precision."""
    peaks = device.peak_flops
    peak = peaks.get(precision) or (peaks.get("bf16") if precision == "fp16" else None)
    if peak is None:
        return point
    roof = min(peak, point.intensity * device.memory_bandwidth_bytes_per_s)
    return msgspec.structs.replace(point, precision=precision, roof_flops_per_s=roof, peak_flops_per_s=peak)


def _time_by_op(trace: RankTrace, work: Work) -> tuple[Integers, Integers]:
    """Kernel time and number of kernels of each host op; on the host an op is its own kernel."""
    number = len(trace.host_ops)
    if work.basis == "host":
        return trace.host_ops.duration_ns, np.ones(number, dtype=np.int64)
    kernels = work.of_class(COMPUTE)
    launched = find_launches(kernels.link, trace.launches)
    shaped = np.array(sorted(trace.host_op_arguments), dtype=np.int64)
    owner = find_enclosing(trace.host_ops.take(shaped), launched.lane, launched.start_ns)
    owned = launched.found & (owner >= 0)
    time_ns, count = np.zeros(number, dtype=np.int64), np.zeros(number, dtype=np.int64)
    if owned.any():
        np.add.at(time_ns, shaped[owner[owned]], kernels.duration_ns[owned])
        np.add.at(count, shaped[owner[owned]], 1)
    return time_ns, count


def _point(name: str, done: OpWork, count: int, time_ns: int) -> RoofPoint:
    return RoofPoint(
        name, done.shape, done.precision, count, time_ns, done.flops, done.moved_bytes, dims=done.dims
    )
