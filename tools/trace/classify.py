"""Which device events compute, which communicate, which copy.

A kernel communicates when the trace gives it a process group or a collective, when its name is in the
pattern list, or when it runs on a stream that carries almost only communication and is no known compute
kernel. Where a trace has no device events (CPU training with gloo) the host's spans take their place, and
`basis` says so.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.trace.name_match import match_names
from tools.trace.patterns import CommunicationPatterns
from tools.trace.record import Integers, RankTrace, Spans, join_spans

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
        [one.take(match_names(trace.names, one, lambda name: name.startswith(_WAITS))) for one in both]
    )
    contains = np.zeros(len(trace.host_ops), dtype=np.bool_)
    for lane in np.unique(waits.lane):
        starts_ns = np.sort(waits.start_ns[waits.lane == lane])
        here = np.flatnonzero(trace.host_ops.lane == lane)
        first = np.searchsorted(starts_ns, trace.host_ops.start_ns[here], side="right")
        last = np.searchsorted(starts_ns, trace.host_ops.end_ns[here], side="left")
        contains[here] = last > first
    return contains
