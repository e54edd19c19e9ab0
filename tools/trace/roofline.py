"""Matrix multiplications and attention on the device's roofline, with the work of each op from its input
shapes.

A multiply-add counts as two FLOPs; attention forward is 4 b h s_q s_k d.
"""

import math
from typing import Annotated, Literal

import msgspec
import numpy as np

from tools.hardware import Device
from tools.scenario.spec import ClosedModel
from tools.trace.classify import (
    ATTENTION_OPS,
    COMPUTE,
    GEMM_OPS,
    RankWork,
    find_element_bytes,
    find_precision,
)
from tools.trace.collectives import is_shape
from tools.trace.record import OpArguments, RankTrace, find_enclosing, find_launches

_BACKWARD_FACTOR = 2.5
_CAUSAL_VALUES = ("True", "true", "1", "2")
"""Values of is_causal, and of a mask's type: causal from the top left or from the bottom right."""
# A summary may come from anywhere, and these are divisors.
PositiveInt = Annotated[int, msgspec.Meta(gt=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, lt=1e40)]


class RoofReport(ClosedModel):
    """One op on the roofline."""

    op: str
    shape: str
    precision: str
    count: int
    time_us: float
    achieved_tflops: float
    intensity_flops_per_byte: float
    roof_tflops: float | None
    bound: Literal["compute", "memory"] | None
    lost_us: float | None


class RoofPoint(msgspec.Struct, frozen=True):
    """All calls of one op with one shape on one rank."""

    op: str
    shape: str
    precision: str
    count: int
    time_ns: PositiveInt
    flops: PositiveFloat
    """Per call."""
    moved_bytes: PositiveFloat
    """Per call."""
    roof_flops_per_s: PositiveFloat | None = None
    """Reachable at this intensity; None without a catalogue entry."""
    peak_flops_per_s: PositiveFloat | None = None
    dims: tuple[int, ...] = ()
    """A product has batch, m, n, k; attention has batch, heads, queries, keys, width."""

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.moved_bytes

    @property
    def achieved_flops_per_s(self) -> float:
        return self.flops * self.count / (self.time_ns * 1e-9)

    @property
    def bound(self) -> Literal["compute", "memory"] | None:
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

    def report(self) -> RoofReport:
        """In the names and units of the JSON output."""
        roof, lost_ns = self.roof_flops_per_s, self.lost_ns
        return RoofReport(
            op=self.op,
            shape=self.shape,
            precision=self.precision,
            count=self.count,
            time_us=self.time_ns / 1000,
            achieved_tflops=self.achieved_flops_per_s / 1e12,
            intensity_flops_per_byte=self.intensity,
            roof_tflops=None if roof is None else roof / 1e12,
            bound=self.bound,
            lost_us=None if lost_ns is None else lost_ns / 1000,
        )


def place_on_roofline(trace: RankTrace, work: RankWork, device: Device | None) -> list[RoofPoint]:
    """One point per op, shape and precision, longest first; on the host an op is its own kernel."""
    time_ns = trace.host_ops.duration_ns
    if work.basis == "device":
        kernels = work.of_class(COMPUTE)
        found, launched = find_launches(kernels.link, trace.launches)
        shaped = np.array(sorted(trace.host_op_arguments), dtype=np.int64)
        owner = find_enclosing(trace.host_ops.take(shaped), launched.lane, launched.start_ns)
        owned = found & (owner >= 0)
        time_ns = np.zeros(len(time_ns), dtype=np.int64)
        if owned.any():
            np.add.at(time_ns, shaped[owner[owned]], kernels.duration_ns[owned])
    points: dict[tuple[str, str, float, float], RoofPoint] = {}
    for position, arguments in trace.host_op_arguments.items():
        name, own_ns = trace.names[trace.host_ops.name[position]], int(time_ns[position])
        if own_ns and (call := find_work(name, arguments, own_ns)):
            key = (call.op, call.shape, call.flops, call.moved_bytes)
            if sum_so_far := points.get(key):
                count, own_ns = sum_so_far.count + 1, sum_so_far.time_ns + own_ns
                call = msgspec.structs.replace(sum_so_far, count=count, time_ns=own_ns)
            points[key] = call
    return sorted(under_roof([*points.values()], device), key=lambda point: -point.time_ns)


def find_work(op: str, arguments: OpArguments, time_ns: int) -> RoofPoint | None:
    """What one call must do; None when the shapes do not say."""
    is_backward = op in ATTENTION_OPS and op.endswith("backward")
    first = 1 if is_backward else GEMM_OPS.get(op, 0)
    operands = arguments.dims[first : first + 2]
    kind = str(arguments.types[first]) if first < len(arguments.types) else ""
    precision = find_precision(kind)
    if precision is None or len(operands) < 2 or not all(map(is_shape, operands)):
        return None
    left, right = operands
    if min((*left, *right), default=0) < 1:
        return None
    if op in GEMM_OPS:
        if len(left) not in (2, 3) or len(right) != len(left) or left[-1] != right[-2]:
            return None
        batch, m, k, n = left[0] if len(left) == 3 else 1, left[-2], left[-1], right[-1]
        dims: tuple[int, ...] = (batch, m, n, k)
        shape = (f"{batch}×" if batch > 1 else "") + f"{m}×{n}×{k}"
        flops = 2.0 * batch * m * n * k
        moved_bytes = float((find_element_bytes(kind) or 4) * batch * (m * k + k * n + m * n))
    elif op in ATTENTION_OPS and len(left) == len(right) == 4:
        batch, heads, queries, width = left
        keys = right[2]
        if heads > queries:
            # Flash kernels take [batch, sequence, heads, width]; heads outnumber tokens in neither layout.
            heads, queries, keys = queries, heads, right[1]
        place = ATTENTION_OPS[op]
        is_causal = place < len(arguments.concrete) and str(arguments.concrete[place]) in _CAUSAL_VALUES
        factor = (_BACKWARD_FACTOR if is_backward else 1.0) * (0.5 if is_causal else 1.0)
        elements = 2 * (math.prod(left) + math.prod(right)) * (2 if is_backward else 1)
        dims = (batch, heads, queries, keys, width)
        shape = f"b{batch} h{heads} q{queries} k{keys} d{width}" + (" causal" if is_causal else "")
        flops = 4.0 * batch * heads * queries * keys * width * factor
        moved_bytes = float((find_element_bytes(kind) or 2) * elements)
    else:
        return None
    return RoofPoint(op, shape, precision, 1, time_ns, flops, moved_bytes, dims=dims)


def worst_points(points: list[RoofPoint]) -> list[RoofPoint]:
    """Those that lose most against the roof first; without a roof, the longest first."""
    return sorted(points, key=lambda point: -(point.time_ns if point.lost_ns is None else point.lost_ns))


def under_roof(points: list[RoofPoint], device: Device | None) -> list[RoofPoint]:
    """The same points with the roof of a device; as they are without one."""
    if device is None:
        return points
    roofed = [_with_roof(point, device, point.precision) for point in points]
    # float32 tensors multiplied faster than the fp32 peak went through the TF32 units.
    is_tf32 = any(
        point.precision == "fp32" and point.achieved_flops_per_s > (point.peak_flops_per_s or math.inf)
        for point in roofed
    )
    if not is_tf32:
        return roofed
    return [_with_roof(point, device, "tf32") if point.precision == "fp32" else point for point in roofed]


def _with_roof(point: RoofPoint, device: Device, precision: str) -> RoofPoint:
    """Unchanged if the device has no peak in this precision."""
    peaks = device.peak_flops
    peak = peaks.get(precision) or (peaks.get("bf16") if precision == "fp16" else None)
    if peak is None:
        return point
    roof = min(peak, point.intensity * device.memory_bandwidth_bytes_per_s)
    return msgspec.structs.replace(point, precision=precision, roof_flops_per_s=roof, peak_flops_per_s=peak)
