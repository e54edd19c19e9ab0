"""How well the host keeps the device fed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.trace.classify import load_patterns
from tools.trace.host import STORM_KERNELS, HostProfile
from tools.trace.kineto import read_kineto
from tools.trace.rank_profile import profile_rank

Make = Callable[..., dict[str, Any]]


def _host(path: Path) -> HostProfile:
    return profile_rank(read_kineto(path), load_patterns()).host


def test_launches_and_synchronisations_are_counted_apart(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    events = [
        host_event("cuda_runtime", "cudaLaunchKernel", 0, 4, correlation=1),
        host_event("cuda_runtime", "cudaGetDevice", 5, 1),
        host_event("cuda_runtime", "cudaStreamSynchronize", 6, 30),
        kernel("gemm", 10, 20, correlation=1),
    ]
    host = _host(write_trace(events))
    assert (host.launches, host.launch_time_ns) == (1, 4000)
    assert (host.synchronisations, host.synchronisation_ns) == (1, 30_000)
    assert host.queue_delay_median_ns == 6000


def test_a_host_that_runs_ahead_fills_the_queue(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    ahead = [host_event("cuda_runtime", "cudaLaunchKernel", i, 1, correlation=i) for i in range(10)]
    work = [kernel("gemm", 100 + i * 10, 10, correlation=i) for i in range(10)]
    assert _host(write_trace([*ahead, *work])).queue_depth_median == 5.5


def test_data_loading_counts_as_idle_only_while_the_device_is(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    events = [
        kernel("gemm", 0, 100),
        host_event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 90, 40),
        kernel("gemm", 140, 10),
    ]
    host = _host(write_trace(events))
    assert (host.data_loading_ns, host.data_loading_idle_ns) == (40_000, 30_000)


def test_a_long_run_of_small_kernels_is_a_storm(write_trace: Callable[..., Path], kernel: Make) -> None:
    small = [kernel("tiny", i * 20, 2) for i in range(STORM_KERNELS)]
    host = _host(write_trace([*small, kernel("big", 5000, 100)]))
    assert (host.storms, host.storm_kernels, host.small_kernels) == (1, STORM_KERNELS, STORM_KERNELS)
    assert host.storm_busy_ns == STORM_KERNELS * 2000
    assert host.storm_span_ns == (STORM_KERNELS - 1) * 20_000 + 2000


def test_a_few_small_kernels_are_none(write_trace: Callable[..., Path], kernel: Make) -> None:
    assert _host(write_trace([kernel("tiny", i * 20, 2) for i in range(STORM_KERNELS - 1)])).storms == 0


def test_the_interval_between_launches_is_that_of_one_thread(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    launches = [
        host_event("cuda_runtime", "cudaLaunchKernel", start, 2, thread=thread, correlation=start)
        for thread, start in ((1, 0), (2, 3), (1, 10), (2, 33), (1, 20))
    ]
    host = _host(write_trace([kernel("gemm", 50, 5), *launches]))
    assert host.launch_interval_median_ns == 10_000
