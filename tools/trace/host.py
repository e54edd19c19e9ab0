"""How well the host keeps the device fed: launches, queue, synchronisations, data loading, small kernels."""

import re
from typing import Literal

import msgspec
import numpy as np

from tools.scenario.spec import ClosedModel
from tools.trace.breakdown import Occupancy, in_microseconds
from tools.trace.classify import COMPUTE, MEMORY, CommunicationPatterns, RankWork
from tools.trace.record import Coverage, RankTrace, Spans, cover, find_launches, join, match_names

SMALL_KERNEL_NS = 10_000
"""About the time a launch takes: shorter kernels cannot keep ahead of the host."""
STORM_KERNELS = 64
"""This many small kernels in a row are a storm."""
_SYNCHRONISES = re.compile("synchronize", re.IGNORECASE)
_ALLOCATES = re.compile("malloc|(cuda|hip)free|memcreate|memunmap", re.IGNORECASE)
_SAVES = re.compile("DtoH.*Pageable", re.IGNORECASE)
_LONG_COPY_NS = 1_000_000
"""A loss or a norm that is read takes microseconds; a checkpoint moves gigabytes."""
_AFTER_SYNC_NS = 20_000
"""The host needs this long to return from a wait."""
_PAUSE_NS = 20_000_000
"""No launch of a running program comes this late."""
_RARE_RATIO = 0.01
"""What comes more often among all launches is the way the program runs."""
HostCause = Literal[
    "data_loading", "checkpointing", "recompilation", "allocator_retries", "synchronisation", "host_pauses"
]


class HostReport(ClosedModel):
    """Figures of one rank, in the units of the JSON output."""

    launches: int
    launch_mean_us: float
    queue_delay_median_us: float
    queue_depth_median: float
    synchronisations: int
    synchronisation_us: float
    data_loading_us: float
    data_loading_idle_us: float
    small_kernel_ratio: float
    small_kernel_storms: int
    storm_kernels: int
    storm_span_us: float
    storm_busy_us: float


class HostProfile(msgspec.Struct, frozen=True):
    """Figures of one rank."""

    launches: int = 0
    launch_time_ns: int = 0
    """Spent inside launch calls."""
    launch_median_ns: int = 0
    """What one launch call takes; the mean also has those that wait for a full queue."""
    launch_interval_median_ns: int = 0
    """From one launch to the next of the same thread: all the host's work for one kernel."""
    queue_delay_median_ns: int = 0
    """From the end of a launch to the start of its work."""
    queue_depth_median: float = 0.0
    """Launched and not yet started, whenever work starts; 1 means that the host is only just in time."""
    synchronisations: int = 0
    synchronisation_ns: int = 0
    data_loading_ns: int = 0
    data_loading_idle_ns: int = 0
    """Data loading while the device had nothing to do."""
    kernels: int = 0
    small_kernels: int = 0
    storms: int = 0
    storm_kernels: int = 0
    storm_span_ns: int = 0
    storm_busy_ns: int = 0
    idle_ns_by_cause: dict[HostCause, int] = {}
    """Idle time whose reason the host's calls and marks show; the rest are late launches."""
    saving_ns: int = 0
    """Long copies to pageable memory, as a checkpoint makes them."""

    def report(self) -> HostReport:
        figures = {
            **msgspec.structs.asdict(self),
            **in_microseconds(self),
            "launch_mean_us": self.launch_time_ns / max(self.launches, 1) / 1000,
            "small_kernel_ratio": self.small_kernels / max(self.kernels, 1),
            "small_kernel_storms": self.storms,
        }
        return HostReport(**{name: figures[name] for name in HostReport.model_fields})


def profile_host(
    trace: RankTrace, work: RankWork, occupancy: Occupancy, loading: Coverage, patterns: CommunicationPatterns
) -> HostProfile:
    waits = match_names(trace.names, trace.launches, _SYNCHRONISES.search)
    allocates = match_names(trace.names, trace.launches, _ALLOCATES.search)
    calls, pauses = trace.launches.take(~waits & ~allocates), trace.launches.take(waits)
    order = np.lexsort((calls.start_ns, calls.lane))
    intervals_ns = np.diff(calls.start_ns[order])[np.diff(calls.lane[order]) == 0]
    found, launched = find_launches(work.spans.link, trace.launches)
    started_ns = work.spans.start_ns[found]
    delay_ns = np.maximum(started_ns - launched.end_ns[found], 0)
    called = np.searchsorted(np.sort(launched.start_ns[found]), np.sort(started_ns), side="right")
    kernels = work.of_class(COMPUTE)
    kernels = kernels.take(np.argsort(kernels.start_ns, kind="stable"))
    is_small = kernels.duration_ns < SMALL_KERNEL_NS
    edges = np.diff(np.concatenate([[False], is_small, [False]]).astype(np.int8))
    first, last = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    is_storm = last - first >= STORM_KERNELS
    first, last = first[is_storm], last[is_storm]
    busy_ns = np.append(0, np.cumsum(kernels.duration_ns))
    saves = trace.take_named(work.of_class(MEMORY), _SAVES.search)
    saves = saves.take(saves.duration_ns >= _LONG_COPY_NS)
    return HostProfile(
        launches=len(calls),
        launch_time_ns=int(calls.duration_ns.sum()),
        launch_median_ns=int(np.median(calls.duration_ns)) if len(calls) else 0,
        launch_interval_median_ns=int(np.median(intervals_ns)) if len(intervals_ns) else 0,
        queue_delay_median_ns=int(np.median(delay_ns)) if len(delay_ns) else 0,
        queue_depth_median=float(np.median(called - np.arange(len(called)))) if len(called) else 0.0,
        synchronisations=len(pauses),
        synchronisation_ns=int(pauses.duration_ns.sum()),
        data_loading_ns=loading.total_ns,
        data_loading_idle_ns=join(loading, occupancy.busy).total_ns - occupancy.busy.total_ns,
        kernels=len(kernels),
        small_kernels=int(is_small.sum()),
        storms=len(first),
        storm_kernels=int((last - first).sum()),
        storm_span_ns=int((kernels.end_ns[last - 1] - kernels.start_ns[first]).sum()),
        storm_busy_ns=int((busy_ns[last] - busy_ns[first]).sum()),
        idle_ns_by_cause=_explain_idle(
            occupancy,
            {
                "data_loading": loading,
                "checkpointing": join(
                    trace.take_named(trace.annotations, patterns.checkpointing.search).cover(), saves.cover()
                ),
                "recompilation": trace.take_named(trace.annotations, patterns.compilation.search).cover(),
                "allocator_retries": trace.launches.take(allocates).cover(),
            },
            pauses,
            saves,
            len(calls),
        ),
        saving_ns=saves.cover().total_ns,
    )


def _explain_idle(
    occupancy: Occupancy, marked: dict[HostCause, Coverage], waits: Spans, saves: Spans, num_launches: int
) -> dict[HostCause, int]:
    """Each gap of the device goes to what the host did in it, to the wait or the copy just before it, or to a
    pause if it is long and rare."""
    starts_ns, ends_ns = occupancy.busy.gaps()

    def after(spans: Spans) -> Coverage:
        """The gaps that begin as one of the spans ends."""
        last = np.sort(spans.end_ns)
        before = np.searchsorted(last, starts_ns + _AFTER_SYNC_NS, side="right") - 1
        near = (
            (before >= 0) & (last[np.maximum(before, 0)] >= starts_ns - _AFTER_SYNC_NS)
            if len(last)
            else starts_ns < 0
        )
        return cover(starts_ns[near], ends_ns[near])

    long = ends_ns - starts_ns >= _PAUSE_NS
    long &= num_launches > 0 and long.sum() <= max(_RARE_RATIO * num_launches, 1)
    pauses = cover(starts_ns[long], ends_ns[long])
    explained: dict[HostCause, int] = {}
    taken = cover(starts_ns[:0], ends_ns[:0])
    idle = cover(starts_ns, ends_ns)
    whole = {
        **marked,
        "checkpointing": join(marked["checkpointing"], after(saves)),
        "synchronisation": after(waits),
        "host_pauses": pauses,
    }
    for cause, spans in whole.items():
        joined = join(taken, spans)
        inside_ns = idle.total_ns + joined.total_ns - join(idle, joined).total_ns
        if more_ns := inside_ns - sum(explained.values()):
            explained[cause] = more_ns
        taken = joined
    return explained
