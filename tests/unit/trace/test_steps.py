"""Steps on the device's timeline and warm-up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.trace.breakdown import Breakdown, StepProfile, measure_steps, occupy, variation_ratio
from tools.trace.classify import classify, load_patterns
from tools.trace.kineto import read_kineto

Make = Callable[..., dict[str, Any]]


def _steps(path: Path) -> list[StepProfile]:
    trace = read_kineto(path)
    work = classify(trace, load_patterns())
    return measure_steps(trace, work, occupy(work, trace.launches))


def _marked_run(kernel: Make, host_event: Make, lengths: list[int]) -> list[dict[str, Any]]:
    """Each step launches one kernel at its mark; the device runs 50 microseconds behind."""
    events, time = [], 0
    for number, length in enumerate(lengths):
        events += [
            host_event("user_annotation", f"ProfilerStep#{number + 10}", time, length),
            host_event("cuda_runtime", "cudaLaunchKernel", time + 1, 2, correlation=number),
            kernel("gemm", time + 50, length - 5, correlation=number),
        ]
        time += length
    return events


def test_steps_follow_the_device_not_the_host(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    steps = _steps(write_trace(_marked_run(kernel, host_event, [100, 100, 100])))
    assert [step.number for step in steps] == [10, 11, 12]
    assert [step.start_ns for step in steps] == [50_000, 150_000, 250_000]
    assert [step.breakdown.compute_ns for step in steps] == [95_000, 95_000, 95_000]
    assert [step.breakdown.total_ns for step in steps] == [100_000, 100_000, 95_000]


def test_leading_long_steps_are_warm_up(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    steps = _steps(write_trace(_marked_run(kernel, host_event, [900, 400, 100, 100, 100, 100])))
    assert [step.is_warm_up for step in steps] == [True, True, False, False, False, False]


def test_a_late_long_step_is_variation_not_warm_up(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    steps = _steps(write_trace(_marked_run(kernel, host_event, [100, 100, 500, 100])))
    assert not any(step.is_warm_up for step in steps)
    assert (variation_ratio(steps) or 0) > 0.5


def test_a_trace_without_marks_has_no_steps(write_trace: Callable[..., Path], kernel: Make) -> None:
    assert _steps(write_trace([kernel("gemm", 0, 5)])) == []


def test_one_step_has_no_variation() -> None:
    assert variation_ratio([StepProfile(0, 0, Breakdown(total_ns=5))]) is None
