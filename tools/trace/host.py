"""How well the host keeps the device fed: launches, queue, synchronisations, data loading, small kernels."""

import re

import msgspec
import numpy as np

from tools.scenario.spec import Result
from tools.trace.breakdown import Occupancy
from tools.trace.classify import COMPUTE, CommunicationPatterns, Work
from tools.trace.record import Coverage, Integers, RankTrace, Spans, cover, find_launches, join, match_names

SMALL_KERNEL_NS = 10_000
"""About the time a launch takes: shorter kernels cannot keep ahead of the host."""
STORM_KERNELS = 64
"""This many small kernels in a row are a storm."""

_SYNCHRONISES = re.compile("synchronize", re.IGNORECASE)


class HostReport(Result):
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

    def report(self) -> HostReport:
        return HostReport(
            launches=self.launches,
            launch_mean_us=self.launch_time_ns / max(self.launches, 1) / 1000,
            queue_delay_median_us=self.queue_delay_median_ns / 1000,
            queue_depth_median=self.queue_depth_median,
            synchronisations=self.synchronisations,
            synchronisation_us=self.synchronisation_ns / 1000,
            data_loading_us=self.data_loading_ns / 1000,
            data_loading_idle_us=self.data_loading_idle_ns / 1000,
            small_kernel_ratio=self.small_kernels / max(self.kernels, 1),
            small_kernel_storms=self.storms,
            storm_kernels=self.storm_kernels,
            storm_span_us=self.storm_span_ns / 1000,
            storm_busy_us=self.storm_busy_ns / 1000,
        )


def profile_host(trace: RankTrace, work: Work, occupancy: Occupancy, loading: Coverage) -> HostProfile:
    """All host figures of one rank."""
    waits = match_names(trace.names, trace.launches, _SYNCHRONISES.search)
    calls, pauses = trace.launches.take(~waits), trace.launches.take(waits)
    launched = find_launches(work.spans.link, trace.launches)
    started_ns = work.spans.start_ns[launched.found]
    delay_ns = np.maximum(started_ns - launched.end_ns[launched.found], 0)
    kernels = work.of_class(COMPUTE)
    return HostProfile(
        launches=len(calls),
        launch_time_ns=int(calls.duration_ns.sum()),
        launch_interval_median_ns=_median_interval(calls),
        queue_delay_median_ns=int(np.median(delay_ns)) if len(delay_ns) else 0,
        queue_depth_median=_median_depth(launched.start_ns[launched.found], started_ns),
        synchronisations=len(pauses),
        synchronisation_ns=int(pauses.duration_ns.sum()),
        data_loading_ns=loading.total_ns,
        data_loading_idle_ns=_outside(loading, occupancy.busy),
        kernels=len(kernels),
        small_kernels=int((kernels.duration_ns < SMALL_KERNEL_NS).sum()),
        **_find_storms(kernels.start_ns, kernels.end_ns),
    )


def find_loading(trace: RankTrace, patterns: CommunicationPatterns) -> Coverage:
    """When the rank was loading data, by its annotations."""
    is_loading = match_names(trace.names, trace.annotations, patterns.data_loading.search)
    spans = trace.annotations.take(is_loading)
    return cover(spans.start_ns, spans.end_ns)


def _median_interval(calls: Spans) -> int:
    order = np.lexsort((calls.start_ns, calls.lane))
    same_thread = np.diff(calls.lane[order]) == 0
    intervals_ns = np.diff(calls.start_ns[order])[same_thread]
    return int(np.median(intervals_ns)) if len(intervals_ns) else 0


def _median_depth(called_ns: Integers, started_ns: Integers) -> float:
    if not len(started_ns):
        return 0.0
    called, started = np.sort(called_ns), np.sort(started_ns)
    depth = np.searchsorted(called, started, side="right") - np.arange(len(started))
    return float(np.median(depth))


def _outside(inner: Coverage, outer: Coverage) -> int:
    """Time of `inner` that `outer` does not cover."""
    return join(inner, outer).total_ns - outer.total_ns


def _find_storms(start_ns: Integers, end_ns: Integers) -> dict[str, int]:
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], end_ns[order]
    small = np.concatenate([[False], end_ns - start_ns < SMALL_KERNEL_NS, [False]]).astype(np.int8)
    edges = np.diff(small)
    firsts, lasts = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    long = lasts - firsts >= STORM_KERNELS
    firsts, lasts = firsts[long], lasts[long]
    busy = np.append(0, np.cumsum(end_ns - start_ns))
    return {
        "storms": len(firsts),
        "storm_kernels": int((lasts - firsts).sum()),
        "storm_span_ns": int((end_ns[lasts - 1] - start_ns[firsts]).sum()),
        "storm_busy_ns": int((busy[lasts] - busy[firsts]).sum()),
    }
