"""Which device events compute, communicate or copy, and what the names of ops, kernels and dtypes mean.

Name patterns are data in `kb_seed/patterns/communication.json`.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from kb_seed import folder
from tools.errors import DataError, InputError
from tools.trace.record import Integers, RankTrace, Spans, join_spans, match_names

COLLECTIVE_OP = "record_param_comms"
OPTIMIZER_MARK = "Optimizer.step#"

GEMM_OPS = frozenset(
    {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_scaled_mm", "aten::_addmm_activation"}
)

ATTENTION_FORWARD_OPS = frozenset(
    {
        "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward",
        "aten::_scaled_dot_product_cudnn_attention",
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        "flash_attn::_flash_attn_forward",
    }
)

ATTENTION_BACKWARD_OPS = frozenset(
    {
        "aten::_flash_attention_backward",
        "aten::_efficient_attention_backward",
        "aten::_scaled_dot_product_cudnn_attention_backward",
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        "flash_attn::_flash_attn_backward",
    }
)

SHAPED_OPS = GEMM_OPS | ATTENTION_FORWARD_OPS | ATTENTION_BACKWARD_OPS | {COLLECTIVE_OP}

_COLLECTIVE_PREFIXES = ("nccl:", "gloo:", "rccl:", "mpi:", "ucc:")

_DEVICE_WORK = re.compile("launch|memcpy|memset|synchronize|enqueue", re.IGNORECASE)


@cache
def is_device_work(runtime_call: str) -> bool:
    """Whether a call into the device runtime starts work or waits for it; the many queries do neither."""
    return _DEVICE_WORK.search(runtime_call) is not None


def is_shaped_annotation(name: str) -> bool:
    """Whether an annotation stands for a collective, with the tensor's shape."""
    return name.startswith(_COLLECTIVE_PREFIXES)


_BYTES_BY_PATTERN = (
    (re.compile(r"float8|fp8|e4m3|e5m2|int8|uint8|char|byte|bool|\bu?i8\b|_[iu]8_", re.I), 1),
    (re.compile(r"bfloat16|bf16|half|float16|fp16|f16|int16|short", re.I), 2),
    (re.compile(r"double|float64|f64|int64|\blong|uint64|_[iu]64_", re.I), 8),
    (re.compile(r"float|fp32|f32|\bint|uint32|_[iu]32_", re.I), 4),
)

_PRECISION_BY_PATTERN = (
    (re.compile(r"float8|fp8|e4m3|e5m2", re.I), "fp8"),
    (re.compile(r"bfloat16|bf16", re.I), "bf16"),
    (re.compile(r"half|float16|fp16", re.I), "fp16"),
    (re.compile(r"^float$|float32|fp32", re.I), "fp32"),
)


@cache
def find_element_bytes(name: str) -> int | None:
    """Bytes of one element, from a dtype or from a kernel name that contains one."""
    return next((size for pattern, size in _BYTES_BY_PATTERN if pattern.search(name)), None)


@cache
def find_precision(name: str) -> str | None:
    """The contract's precision name of a floating dtype."""
    return next((precision for pattern, precision in _PRECISION_BY_PATTERN if pattern.search(name)), None)


class _PatternFile(msgspec.Struct):
    device_kernels: list[str]
    user_kernels: list[str]
    suspect_kernels: list[str]
    host_spans: list[str]
    data_loading: list[str]
    compute_kernels: list[str]
    matrix_kernels: list[str]
    kinds: list[tuple[str, str]]


@dataclass(frozen=True)
class CommunicationPatterns:
    """Compiled patterns; every lookup is by one name."""

    device_kernel: re.Pattern[str]
    suspect_kernel: re.Pattern[str]
    """May communicate, perhaps among computing: counted as compute, with a note."""
    host_span: re.Pattern[str]
    data_loading: re.Pattern[str]
    compute_kernel: re.Pattern[str]
    matrix_kernel: re.Pattern[str]
    """Matrix products, convolutions, attention: what a compute-bound step should consist of."""
    kinds: tuple[tuple[str, re.Pattern[str]], ...]

    def find_kind(self, name: str) -> str:
        """`all_reduce`, `all_gather`, ...; `other` when the name does not tell."""
        return next((kind for kind, pattern in self.kinds if pattern.search(name)), "other")


@cache
def load_patterns() -> CommunicationPatterns:
    """The patterns shipped with ASAP."""
    source = folder("patterns").joinpath("communication.json")
    try:
        data = msgspec.json.decode(source.read_bytes(), type=_PatternFile)
        return _compile(data)
    except (OSError, msgspec.DecodeError, re.error) as error:
        raise DataError(f"kb_seed/patterns/communication.json: {error}") from error


def _compile(data: _PatternFile) -> CommunicationPatterns:
    """One pattern per list."""
    return CommunicationPatterns(
        device_kernel=_any_of(data.device_kernels + data.user_kernels),
        suspect_kernel=_any_of(data.suspect_kernels),
        host_span=_any_of(data.host_spans),
        data_loading=_any_of(data.data_loading),
        compute_kernel=_any_of(data.compute_kernels),
        matrix_kernel=_any_of(data.matrix_kernels),
        kinds=tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in data.kinds),
    )


def with_user_kernels(patterns: CommunicationPatterns, more: list[str]) -> CommunicationPatterns:
    """The same patterns with further device kernels of the user's own."""
    try:
        return replace(patterns, device_kernel=_any_of([patterns.device_kernel.pattern, *more]))
    except re.error as error:
        raise InputError("communication pattern", more, f"must be regular expressions ({error})") from error


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)", re.IGNORECASE)


COMPUTE, COMMUNICATION, MEMORY = 0, 1, 2

_COMMUNICATION_STREAM_RATIO = 0.9
"""Share of a stream's kernels that must be known communication before the others on it count too."""
_WAITS = (
    "c10d::",
    "record_param_comms",
    "torch.distributed",
    "DistributedDataParallel",
    "_c10d_functional::",
    "FSDP::",
)
"""Host spans in which a thread waits for a collective; so does every op around one, an autograd node say."""
_WRAPPERS = ("autograd::engine::", *_WAITS)
"""Host ops that contain or wait for others: their time is not computing."""


@dataclass(frozen=True)
class Work:
    """The events that occupy a rank, each with its class."""

    spans: Spans
    work_class: Integers
    origin: Integers
    """Position in `RankTrace.device`, or for host communication in `RankTrace.annotations`; else -1."""
    basis: str
    """`device`, or `host` when the trace has no device events."""

    def of_class(self, work_class: int) -> Spans:
        return self.spans.take(self.work_class == work_class)


def classify(trace: RankTrace, patterns: CommunicationPatterns) -> Work:
    """The rank's work, sorted into computing, communicating and copying."""
    if not len(trace.device):
        return _classify_host(trace, patterns)
    communicates = match_names(trace.names, trace.device, patterns.device_kernel.search)
    communicates[list(trace.device_collectives)] = True
    communicates &= ~trace.is_memory
    communicates |= _on_communication_stream(trace, communicates, patterns)
    work_class = np.where(trace.is_memory, MEMORY, np.where(communicates, COMMUNICATION, COMPUTE))
    return Work(trace.device, work_class, np.arange(len(trace.device)), "device")


def _on_communication_stream(
    trace: RankTrace, known: NDArray[np.bool_], patterns: CommunicationPatterns
) -> NDArray[np.bool_]:
    kernel = ~trace.is_memory
    result = np.zeros(len(kernel), dtype=np.bool_)
    for stream in np.unique(trace.device.lane[known]):
        here = kernel & (trace.device.lane == stream)
        if known[here].mean() >= _COMMUNICATION_STREAM_RATIO:
            result |= here
    if (result & ~known).any():
        result &= ~match_names(trace.names, trace.device, patterns.compute_kernel.search)
    return result


def _classify_host(trace: RankTrace, patterns: CommunicationPatterns) -> Work:
    talks = np.flatnonzero(match_names(trace.names, trace.annotations, patterns.host_span.search))
    wraps = match_names(trace.names, trace.host_ops, lambda name: name.startswith(_WRAPPERS))
    works = np.flatnonzero(~(wraps | _around_waiting(trace)))
    spans = join_spans([trace.host_ops.take(works), trace.annotations.take(talks)])
    work_class = np.repeat([COMPUTE, COMMUNICATION], [len(works), len(talks)])
    origin = np.concatenate([np.full(len(works), -1), talks])
    return Work(spans, work_class, origin, "host")


def _around_waiting(trace: RankTrace) -> NDArray[np.bool_]:
    """Which host ops contain a span that waits, on the same thread; what they compute are ops inside."""
    both = (trace.host_ops, trace.annotations)
    waits = join_spans(
        [spans.take(match_names(trace.names, spans, lambda name: name.startswith(_WAITS))) for spans in both]
    )
    contains = np.zeros(len(trace.host_ops), dtype=np.bool_)
    for lane in np.unique(waits.lane):
        starts_ns = np.sort(waits.start_ns[waits.lane == lane])
        here = np.flatnonzero(trace.host_ops.lane == lane)
        first = np.searchsorted(starts_ns, trace.host_ops.start_ns[here], side="right")
        last = np.searchsorted(starts_ns, trace.host_ops.end_ns[here], side="left")
        contains[here] = last > first
    return contains
