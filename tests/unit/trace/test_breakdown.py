"""Where a rank's time goes, on traces small enough to add up by hand; steps and warm-up."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.trace.builders import Event, host_event, kernel, launch, profile_of
from tools.trace.breakdown import variation_ratio

NCCL = "ncclDevKernel_AllReduce_Sum_f32"
COPY = kernel("Memcpy HtoD", 5, 15, stream=3) | {"cat": "gpu_memcpy"}


@pytest.mark.parametrize(
    ("events", "terms"),
    [
        (
            [kernel("gemm", 0, 10), kernel(NCCL, 10, 30, stream=9)],
            {"exposed_communication_ns": 30_000, "overlap_ratio": 0},
        ),
        (
            [kernel("gemm", 0, 40), kernel(NCCL, 10, 60, stream=9)],
            {"communication_ns": 60_000, "exposed_communication_ns": 30_000, "overlap_ratio": 0.5},
        ),
        ([kernel("gemm", 0, 10), COPY], {"memory_ns": 10_000}),
        ([kernel("a", 0, 10), kernel("b", 5, 10, stream=8)], {"compute_ns": 15_000, "overlap_ratio": None}),
        (
            [launch(0, 1, 1), kernel("a", 2, 8, 7, 1), launch(25, 5, 2), kernel("b", 33, 7, 7, 2)],
            {"idle_ns": 23_000, "idle_host_ns": 20_000, "idle_waiting_ns": 3_000},
        ),
        (
            [launch(0, 1, 1), launch(1, 1, 2), kernel("a", 2, 8, 7, 1), kernel("b", 30, 5, 7, 2)],
            {"idle_host_ns": 0, "idle_waiting_ns": 20_000},
        ),
        ([kernel("a", 0, 5), kernel("b", 9, 1, 7, 77)], {"idle_unknown_ns": 4_000}),
        ([], {"total_ns": 0, "overlap_ratio": None}),
    ],
    ids=[
        "serial streams do not overlap",
        "hidden communication is not exposed",
        "copies count only if nothing else runs",
        "two kernels at once count once",
        "idle before a late launch is the host's",
        "idle with work launched is waiting",
        "idle without a captured launch is unknown",
        "an empty trace takes no time",
    ],
)
def test_each_moment_counts_as_one_term(tmp_path: Path, events: list[Event], terms: dict[str, float]) -> None:
    measured = profile_of(tmp_path, events).breakdown
    assert {name: getattr(measured, name) for name in terms} == terms


@given(
    st.lists(
        st.tuples(st.sampled_from(["gemm", NCCL, "Memset"]), st.integers(0, 500), st.integers(0, 80)),
        min_size=1,
    )
)
@settings(max_examples=80)
def test_the_terms_always_add_up_to_the_total(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[str, int, int]]
) -> None:
    category = {"Memset": "gpu_memset"}
    rows = [
        kernel(name, start / 8, length / 8) | {"cat": category.get(name, "kernel")}
        for name, start, length in spans
    ]
    terms = profile_of(tmp_path_factory.mktemp("trace"), rows).breakdown
    parts = terms.compute_ns + terms.exposed_communication_ns + terms.memory_ns + terms.idle_ns
    assert parts == terms.total_ns
    assert terms.idle_ns == terms.idle_host_ns + terms.idle_waiting_ns + terms.idle_unknown_ns
    assert terms.exposed_communication_ns <= terms.communication_ns


def _marked_run(*lengths: int) -> list[Event]:
    """Each step launches one kernel at its mark; the device runs 50 microseconds behind."""
    events, time = [], 0
    for number, length in enumerate(lengths):
        events += [
            host_event("user_annotation", f"ProfilerStep#{number + 10}", time, length),
            launch(time + 1, 2, number),
            kernel("gemm", time + 50, length - 5, correlation=number),
        ]
        time += length
    return events


def test_steps_follow_the_device_not_the_host(tmp_path: Path) -> None:
    steps = profile_of(tmp_path, _marked_run(100, 100, 100)).steps
    assert [
        (step.number, step.start_ns, step.breakdown.compute_ns, step.breakdown.total_ns) for step in steps
    ] == [(10, 50_000, 95_000, 100_000), (11, 150_000, 95_000, 100_000), (12, 250_000, 95_000, 95_000)]


def test_leading_long_steps_are_warm_up_and_a_late_one_is_variation(tmp_path: Path) -> None:
    steps = profile_of(tmp_path, _marked_run(900, 400, 100, 100, 100, 100)).steps
    assert [step.is_warm_up for step in steps] == [True, True, False, False, False, False]
    steps = profile_of(tmp_path, _marked_run(100, 100, 500, 100)).steps
    assert not any(step.is_warm_up for step in steps)
    assert (variation_ratio(steps) or 0) > 0.5
    assert variation_ratio(steps[:1]) is None
