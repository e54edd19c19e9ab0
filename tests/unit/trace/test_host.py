"""How well the host keeps the device fed."""

from pathlib import Path

from tests.unit.trace.builders import host_event, kernel, launch, profile_of
from tools.trace.host import STORM_KERNELS


def test_launches_and_synchronisations_are_counted_apart(tmp_path: Path) -> None:
    events = [
        launch(0, 4, 1),
        host_event("cuda_runtime", "cudaGetDevice", 5, 1),
        host_event("cuda_runtime", "cudaStreamSynchronize", 6, 30),
        kernel("gemm", 10, 20, correlation=1),
    ]
    host = profile_of(tmp_path, events).host
    assert (host.launches, host.launch_time_ns) == (1, 4000)
    assert (host.synchronisations, host.synchronisation_ns) == (1, 30_000)
    assert host.queue_delay_median_ns == 6000


def test_a_host_that_runs_ahead_fills_the_queue(tmp_path: Path) -> None:
    ahead = [launch(i, 1, i) for i in range(10)]
    work = [kernel("gemm", 100 + i * 10, 10, correlation=i) for i in range(10)]
    assert profile_of(tmp_path, [*ahead, *work]).host.queue_depth_median == 5.5


def test_data_loading_counts_as_idle_only_while_the_device_is(tmp_path: Path) -> None:
    events = [
        kernel("gemm", 0, 100),
        host_event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 90, 40),
        kernel("gemm", 140, 10),
    ]
    host = profile_of(tmp_path, events).host
    assert (host.data_loading_ns, host.data_loading_idle_ns) == (40_000, 30_000)


def test_a_long_run_of_small_kernels_is_a_storm(tmp_path: Path) -> None:
    small = [kernel("tiny", i * 20, 2) for i in range(STORM_KERNELS)]
    host = profile_of(tmp_path, [*small, kernel("big", 5000, 100)]).host
    assert (host.storms, host.storm_kernels, host.small_kernels) == (1, STORM_KERNELS, STORM_KERNELS)
    assert host.storm_busy_ns == STORM_KERNELS * 2000
    assert profile_of(tmp_path, small[1:]).host.storms == 0
    assert host.storm_span_ns == (STORM_KERNELS - 1) * 20_000 + 2000


def test_the_interval_between_launches_is_that_of_one_thread(tmp_path: Path) -> None:
    launches = [
        launch(start, 2, start, thread) for thread, start in ((1, 0), (2, 3), (1, 10), (2, 33), (1, 20))
    ]
    host = profile_of(tmp_path, [kernel("gemm", 50, 5), *launches]).host
    assert host.launch_interval_median_ns == 10_000
