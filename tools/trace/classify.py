"""Which device events compute, communicate or copy, and what the names of ops, kernels and dtypes mean.

Name patterns are data in `kb_seed/patterns/communication.json`.
"""

import re
from dataclasses import dataclass, replace
from functools import cache

import msgspec
import numpy as np

from kb_seed import folder
from tools.errors import DataError, InputError
from tools.trace.record import Integers, RankTrace, Spans, join_spans, match_names

COLLECTIVE_OP = "record_param_comms"
OPTIMIZER_MARK = "Optimizer.step#"
COMPUTE, COMMUNICATION, MEMORY = 0, 1, 2
CLASS_NAMES = ("compute", "communication", "memory")
GEMM_OPS = {
    "aten::mm": 0,
    "aten::addmm": 1,
    "aten::bmm": 0,
    "aten::baddbmm": 1,
    "aten::_scaled_mm": 0,
    "aten::_addmm_activation": 1,
}
"""With the place of the first matrix: some take the bias before the two."""
ATTENTION_OPS = {
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
"""With the place of is_causal, or of the mask's type, in each op's schema (PyTorch's native_functions.yaml of
2.13, flash_attn_interface.py of flash-attn 2.7)."""
SHAPED_OPS = frozenset({*GEMM_OPS, *ATTENTION_OPS, COLLECTIVE_OP})
_COLLECTIVE_PREFIXES = ("nccl:", "gloo:", "rccl:", "mpi:", "ucc:")
_DEVICE_WORK = re.compile(
    "launch|memcpy|memset|synchronize|enqueue|malloc|free|memcreate|memunmap", re.IGNORECASE
)
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


@cache
def is_device_work(runtime_call: str) -> bool:
    """Whether a call into the device runtime starts work, waits for it or takes memory; queries do not."""
    return _DEVICE_WORK.search(runtime_call) is not None


def is_shaped_annotation(name: str) -> bool:
    """Whether an annotation stands for a collective, with the tensor's shape."""
    return name.startswith(_COLLECTIVE_PREFIXES)


@cache
def find_element_bytes(name: str) -> int | None:
    """Bytes of one element, from a dtype or from a kernel name that contains one."""
    return next((size for pattern, size in _BYTES_BY_PATTERN if pattern.search(name)), None)


@cache
def find_precision(name: str) -> str | None:
    """The contract's precision name of a floating dtype."""
    return next((precision for pattern, precision in _PRECISION_BY_PATTERN if pattern.search(name)), None)


class _PatternFile(msgspec.Struct):
    """Regular expressions in lists; those of one list become one pattern."""

    device_kernels: list[str]
    user_kernels: list[str]
    suspect_kernels: list[str]
    host_spans: list[str]
    data_loading: list[str]
    checkpointing: list[str]
    compilation: list[str]
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
    checkpointing: re.Pattern[str]
    compilation: re.Pattern[str]
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
        return CommunicationPatterns(
            device_kernel=_any_of(data.device_kernels + data.user_kernels),
            suspect_kernel=_any_of(data.suspect_kernels),
            host_span=_any_of(data.host_spans),
            data_loading=_any_of(data.data_loading),
            checkpointing=_any_of(data.checkpointing),
            compilation=_any_of(data.compilation),
            compute_kernel=_any_of(data.compute_kernels),
            matrix_kernel=_any_of(data.matrix_kernels),
            kinds=tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in data.kinds),
        )
    except (OSError, msgspec.DecodeError, re.error) as error:
        raise DataError(f"kb_seed/patterns/communication.json: {error}") from error


def with_user_kernels(patterns: CommunicationPatterns, more: list[str]) -> CommunicationPatterns:
    """The same patterns with further device kernels of the user's own."""
    try:
        return replace(patterns, device_kernel=_any_of([patterns.device_kernel.pattern, *more]))
    except re.error as error:
        raise InputError("communication pattern", more, f"must be regular expressions ({error})") from error


def _any_of(patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)", re.IGNORECASE)


@dataclass(frozen=True)
class RankWork:
    """The events that occupy a rank, each with its class."""

    spans: Spans
    work_class: Integers
    origin: Integers
    """Position in `RankTrace.device`, or for host communication in `RankTrace.annotations`; else -1."""
    basis: str
    """`device`, or `host` when the trace has no device events."""

    def of_class(self, work_class: int) -> Spans:
        return self.spans.take(self.work_class == work_class)


def classify(trace: RankTrace, patterns: CommunicationPatterns) -> RankWork:
    """The rank's work, sorted into computing, communicating and copying."""
    if not len(trace.device):
        return _classify_host(trace, patterns)
    kernel = ~trace.is_memory
    communicates = match_names(trace.names, trace.device, patterns.device_kernel.search)
    communicates[list(trace.device_collectives)] = True
    communicates &= kernel
    # Unknown kernels on a stream of collectives communicate too.
    _, stream = np.unique(trace.device.lane, return_inverse=True)
    kernels, talks = np.bincount(stream, kernel), np.bincount(stream, communicates)
    beside = kernel & ((talks > 0) & (talks >= _COMMUNICATION_STREAM_RATIO * kernels))[stream]
    if (beside & ~communicates).any():
        beside &= ~match_names(trace.names, trace.device, patterns.compute_kernel.search)
    work_class = np.where(kernel, np.where(communicates | beside, COMMUNICATION, COMPUTE), MEMORY)
    return RankWork(trace.device, work_class, np.arange(len(trace.device)), "device")


def _classify_host(trace: RankTrace, patterns: CommunicationPatterns) -> RankWork:
    """Host ops compute, unless they contain a span that waits: what such an op computes are ops inside it."""
    ops, marks = trace.host_ops, trace.annotations
    talks = np.flatnonzero(match_names(trace.names, marks, patterns.host_span.search))
    idle = match_names(trace.names, ops, lambda name: name.startswith(_WRAPPERS))
    waits = join_spans(
        [trace.take_named(each, lambda name: name.startswith(_WAITS)) for each in (ops, marks)]
    )
    for lane in np.unique(waits.lane):
        starts_ns = np.sort(waits.start_ns[waits.lane == lane])
        here = np.flatnonzero(ops.lane == lane)
        first = np.searchsorted(starts_ns, ops.start_ns[here], side="right")
        last = np.searchsorted(starts_ns, ops.end_ns[here], side="left")
        idle[here] |= last > first
    works = np.flatnonzero(~idle)
    spans = join_spans([ops.take(works), marks.take(talks)])
    work_class = np.repeat([COMPUTE, COMMUNICATION], [len(works), len(talks)])
    origin = np.concatenate([np.full(len(works), -1), talks])
    return RankWork(spans, work_class, origin, "host")
