"""The terms of the breakdown on traces small enough to add up by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.trace.breakdown import Breakdown, add_breakdowns, measure
from tools.trace.classify import classify, load_patterns
from tools.trace.kineto import read_kineto

Make = Callable[..., dict[str, Any]]
NCCL = "ncclDevKernel_AllReduce_Sum_f32"


def _measure(path: Path) -> Breakdown:
    trace = read_kineto(path)
    return measure(classify(trace, load_patterns()), trace.launches)


def test_overlap_is_zero_when_streams_are_serial(write_trace: Callable[..., Path], kernel: Make) -> None:
    result = _measure(write_trace([kernel("gemm", 0, 10), kernel(NCCL, 10, 30, stream=9)]))
    assert result.overlap_ratio == 0
    assert result.exposed_communication_ns == 30_000


def test_hidden_communication_is_not_exposed(write_trace: Callable[..., Path], kernel: Make) -> None:
    result = _measure(write_trace([kernel("gemm", 0, 40), kernel(NCCL, 10, 60, stream=9)]))
    assert result.communication_ns == 60_000
    assert result.exposed_communication_ns == 30_000
    assert result.overlap_ratio == 0.5


def test_copies_count_only_where_nothing_else_runs(write_trace: Callable[..., Path], kernel: Make) -> None:
    copy = kernel("Memcpy HtoD", 5, 15, stream=3) | {"cat": "gpu_memcpy"}
    result = _measure(write_trace([kernel("gemm", 0, 10), copy]))
    assert result.memory_ns == 10_000


def test_two_kernels_at_once_are_not_counted_twice(write_trace: Callable[..., Path], kernel: Make) -> None:
    assert _measure(write_trace([kernel("a", 0, 10), kernel("b", 5, 10, stream=8)])).compute_ns == 15_000


def test_idle_before_a_late_launch_is_the_hosts(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    events = [
        host_event("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1),
        kernel("a", 2, 8, correlation=1),
        host_event("cuda_runtime", "cudaLaunchKernel", 25, 5, correlation=2),
        kernel("b", 33, 7, correlation=2),
    ]
    result = _measure(write_trace(events))
    assert result.idle_ns == 23_000
    assert result.idle_host_ns == 20_000
    assert result.idle_waiting_ns == 3_000


def test_idle_with_work_launched_early_is_waiting(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    events = [
        host_event("cuda_runtime", "cudaLaunchKernel", 0, 1, correlation=1),
        host_event("cuda_runtime", "cudaLaunchKernel", 1, 1, correlation=2),
        kernel("a", 2, 8, correlation=1),
        kernel("b", 30, 5, correlation=2),
    ]
    result = _measure(write_trace(events))
    assert (result.idle_host_ns, result.idle_waiting_ns) == (0, 20_000)


def test_idle_whose_launch_is_not_captured_is_unknown(write_trace: Callable[..., Path], kernel: Make) -> None:
    result = _measure(write_trace([kernel("a", 0, 5), kernel("b", 9, 1, correlation=77)]))
    assert result.idle_unknown_ns == 4_000


def test_a_trace_without_communication_has_no_overlap_ratio(
    write_trace: Callable[..., Path], kernel: Make
) -> None:
    assert _measure(write_trace([kernel("a", 0, 5)])).as_microseconds().overlap_ratio is None


def test_an_empty_trace_takes_no_time(write_trace: Callable[..., Path]) -> None:
    assert _measure(write_trace([])) == Breakdown()


def test_breakdowns_add_term_by_term() -> None:
    one = Breakdown(compute_ns=3, total_ns=5, idle_ns=2)
    assert add_breakdowns([one, one]) == Breakdown(compute_ns=6, total_ns=10, idle_ns=4)


_EVENTS = st.lists(
    st.tuples(st.sampled_from(["gemm", NCCL, "Memset"]), st.integers(0, 500), st.integers(0, 80)), min_size=1
)


@given(_EVENTS)
@settings(max_examples=80, deadline=None)
def test_the_terms_always_add_up_to_the_total(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int, int]]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "rank0.json"
    rows = [
        {
            "cat": "gpu_memset" if name == "Memset" else "kernel",
            "name": name,
            "ts": start / 8,
            "dur": length / 8,
        }
        for name, start, length in events
    ]
    path.write_text(json.dumps({"traceEvents": rows}))
    one = _measure(path)
    parts = one.compute_ns + one.exposed_communication_ns + one.memory_ns + one.idle_ns
    assert parts == one.total_ns
    assert one.idle_ns == one.idle_host_ns + one.idle_waiting_ns + one.idle_unknown_ns
    assert one.exposed_communication_ns <= one.communication_ns
