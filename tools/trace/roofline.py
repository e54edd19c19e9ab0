"""Matrix multiplications and attention on the device's roofline, with the work of each op from its input
shapes.

A multiply-add counts as two FLOPs; attention forward is 4 b h s_q s_k d.
"""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from tools.hardware import Device
from tools.scenario.spec import Result
from tools.trace.classify import (
    ATTENTION_BACKWARD_OPS,
    ATTENTION_FORWARD_OPS,
    COMPUTE,
    GEMM_OPS,
    Work,
    find_element_bytes,
    find_precision,
)
from tools.trace.collectives import is_shape
from tools.trace.record import Integers, OpArguments, RankTrace, find_enclosing, find_launches

_BACKWARD_FACTOR = 2.5
_FIRST_OPERAND = {"aten::addmm": 1, "aten::baddbmm": 1, "aten::_addmm_activation": 1}
"""These take the bias before the two matrices."""
_CAUSAL_ARGUMENT = {
    "aten::_flash_attention_forward": 8,
    "aten::_flash_attention_backward": 11,
    "aten::_efficient_attention_forward": 9,
    "aten::_efficient_attention_backward": 14,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "flash_attn::_flash_attn_forward": 5,
    "flash_attn::_flash_attn_backward": 11,
}
"""Place of is_causal, or of the mask's type, in each op's schema (PyTorch's native_functions.yaml of 2.13,
flash_attn_interface.py of flash-attn 2.7)."""
_CAUSAL_VALUES = ("True", "true", "1", "2")
"""Values of is_causal, and of a mask's type: causal from the top left or from the bottom right."""


@dataclass(frozen=True)
class OpWork:
    """What one call must do."""

    shape: str
    dims: tuple[int, ...]
    """Of a product: batch, m, n, k; of attention: batch, heads, queries, keys, width."""
    precision: str
    flops: float
    moved_bytes: float


def find_work(name: str, arguments: OpArguments) -> OpWork | None:
    """None when the shapes do not say."""
    if name in GEMM_OPS:
        return _gemm_work(arguments, _FIRST_OPERAND.get(name, 0))
    if name in ATTENTION_FORWARD_OPS:
        return _attention_work(arguments, first=0, causal=_is_causal(name, arguments))
    if name in ATTENTION_BACKWARD_OPS:
        return _attention_work(arguments, first=1, causal=_is_causal(name, arguments), backward=True)
    return None


def _gemm_work(arguments: OpArguments, first: int) -> OpWork | None:
    left, right = _dims(arguments, first), _dims(arguments, first + 1)
    kind = _type(arguments, first)
    if left is None or right is None or len(left) not in (2, 3) or len(right) != len(left) or kind is None:
        return None
    batch = left[0] if len(left) == 3 else 1
    m, k, n = left[-2], left[-1], right[-1]
    if right[-2] != k or min(batch, m, k, n) < 1:
        return None
    element_bytes = find_element_bytes(kind) or 4
    return OpWork(
        shape=(f"{batch}×" if batch > 1 else "") + f"{m}×{n}×{k}",
        dims=(batch, m, n, k),
        precision=find_precision(kind) or "fp32",
        flops=2.0 * batch * m * n * k,
        moved_bytes=float(element_bytes * batch * (m * k + k * n + m * n)),
    )


def _is_causal(name: str, arguments: OpArguments) -> bool:
    place = _CAUSAL_ARGUMENT[name]
    return place < len(arguments.concrete) and arguments.concrete[place] in _CAUSAL_VALUES


def _attention_work(
    arguments: OpArguments, first: int, causal: bool, backward: bool = False
) -> OpWork | None:
    query, key = _dims(arguments, first), _dims(arguments, first + 1)
    kind = _type(arguments, first)
    if query is None or key is None or kind is None or len(query) != 4 or len(key) != 4:
        return None
    if min(*query, *key) < 1:
        return None
    batch, heads, queries, width = query
    _, key_heads, keys, _ = key
    if heads > queries:
        # The flash kernels take [batch, sequence, heads, width]; heads outnumber tokens in neither layout.
        heads, queries, key_heads, keys = queries, heads, keys, key_heads
    factor = (_BACKWARD_FACTOR if backward else 1.0) * (0.5 if causal else 1.0)
    element_bytes = find_element_bytes(kind) or 2
    operands = 2 * math.prod(query) + 2 * math.prod(key)
    return OpWork(
        shape=f"b{batch} h{heads} q{queries} k{keys} d{width}" + (" causal" if causal else ""),
        dims=(batch, heads, queries, keys, width),
        precision=find_precision(kind) or "bf16",
        flops=4.0 * batch * heads * queries * keys * width * factor,
        moved_bytes=float(element_bytes * operands * (2 if backward else 1)),
    )


def _dims(arguments: OpArguments, position: int) -> list[int] | None:
    dims: Any = arguments.dims[position] if position < len(arguments.dims) else None
    return dims if is_shape(dims) and dims else None


def _type(arguments: OpArguments, position: int) -> str | None:
    """The dtype of one operand, when it is a floating one."""
    kind = arguments.types[position] if position < len(arguments.types) else ""
    return kind if find_precision(kind) else None


# A summary may come from anywhere, and these are divisors.
PositiveInt = Annotated[int, msgspec.Meta(gt=0)]
PositiveFloat = Annotated[float, msgspec.Meta(gt=0, lt=1e40)]


class RoofReport(Result):
    """One op on the roofline, in the units of the JSON output."""

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


def worst_points(points: list[RoofPoint]) -> list[RoofPoint]:
    """Those that lose most against the roof first; without a roof, the longest first."""
    return sorted(points, key=lambda point: -(point.time_ns if point.lost_ns is None else point.lost_ns))


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
    return [_with_roof(point, device, "tf32") if point.precision == "fp32" else point for point in roofed]


def _beats_fp32(point: RoofPoint) -> bool:
    peak = point.peak_flops_per_s
    return point.precision == "fp32" and peak is not None and point.achieved_flops_per_s > peak


def _with_roof(point: RoofPoint, device: Device, precision: str) -> RoofPoint:
    """Unchanged if the device has no peak in this precision."""
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
