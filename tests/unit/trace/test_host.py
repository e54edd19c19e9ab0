"""How well the host keeps the device fed."""

from pathlib import Path

from tests.unit.trace.builders import host_event, kernel, launch, profile_of
from tools.trace.host import STORM_KERNELS


def test_launches_synchronisations_and_data_loading_are_told_apart(tmp_path: Path) -> None:
    events = [
        launch(0, 4, 1),
        host_event("cuda_runtime", "cudaGetDevice", 5, 1),
        host_event("cuda_runtime", "cudaStreamSynchronize", 6, 30),
        kernel("gemm", 10, 100, correlation=1),
        host_event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 90, 40),
        kernel("gemm", 140, 10),
    ]
    host = profile_of(tmp_path, events).host
    assert (host.launches, host.launch_time_ns) == (1, 4000)
    assert (host.synchronisations, host.synchronisation_ns) == (1, 30_000)
    assert host.queue_delay_median_ns == 6000
    # counts as idle only while the device is
    assert (host.data_loading_ns, host.data_loading_idle_ns) == (40_000, 20_000)


def test_a_long_run_of_small_kernels_is_a_storm(tmp_path: Path) -> None:
    small = [kernel("tiny", i * 20, 2) for i in range(STORM_KERNELS)]
    host = profile_of(tmp_path, [*small, kernel("big", 5000, 100)]).host
    assert (host.storms, host.storm_kernels, host.small_kernels) == (1, STORM_KERNELS, STORM_KERNELS)
    assert host.storm_busy_ns == STORM_KERNELS * 2000
    assert host.storm_span_ns == (STORM_KERNELS - 1) * 20_000 + 2000
    assert profile_of(tmp_path, small[1:]).host.storms == 0
