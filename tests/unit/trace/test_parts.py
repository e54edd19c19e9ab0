"""What steps are made of, and what two of them differ by: each moment belongs to one part."""

from pathlib import Path

import pytest

from tests.unit.trace.builders import Event, host_event, kernel, launch, profile_of, shapes
from tools.trace.compare import TraceChange, compare
from tools.trace.parts import MAX_MEAN_PARTS, REST
from tools.trace.rank_profile import mean_parts

SIZED = {"Collective name": "allreduce", "In msg nelems": 4096, "Out msg nelems": 4096, "dtype": "Float"}


def step(
    gemm: float = 100, *, late: float = 0, reduce_at: float = 20, pieces: int = 1, fused: bool = True
) -> list[Event]:
    """A matrix product beside a collective, then an element-wise kernel, all launched ahead of time."""
    more, size = gemm - 100, {**SIZED, "In msg nelems": 4096 // pieces, "Out msg nelems": 4096 // pieces}
    after = 100 + more + late
    events = [
        host_event("cpu_op", "aten::linear", 0, 10),
        host_event("cpu_op", "aten::addmm", 1, 8, args=shapes([4], [2, 8], [8, 4])),
        launch(2, 1, 1),
        host_event("user_annotation", "MLP.norm", 10.5, 5 + late),
        launch(11, 1, 2) if not late else launch(98 + more + late, 1, 2),
        launch(13, 1, 3),
        kernel("gemm", 10, gemm - 10, 7, 1),
    ]
    events += [kernel("ncclAllReduce", reduce_at + 30 * n, 30, 20, 3, size) for n in range(pieces)]
    if late:
        events.append(
            host_event("cuda_runtime", "cudaStreamSynchronize", 20, 75 + more + late, args={"correlation": 9})
        )
    events += (
        [kernel("fused_norm", after, 20, 7, 2)]
        if fused
        else [kernel(name, after + 20 * n, 20, 7, 2) for n, name in enumerate(("mean", "scale", "add"))]
    )
    return events


def changed(folder: Path, after: list[Event]) -> TraceChange:
    return compare([profile_of(folder, step())], [profile_of(folder, after)])


def test_each_part_has_its_call_stack_module_and_shape_and_the_parts_add_up(tmp_path: Path) -> None:
    profile = profile_of(tmp_path, step())
    assert sum(part.own_ns for part in profile.parts) == profile.breakdown.total_ns == 110_000
    found = {part.kernel: part for part in profile.parts if part.count}
    assert found["gemm"].op == "aten::linear > aten::addmm"
    assert found["gemm"].shape == "[[4], [2, 8], [8, 4]]"
    assert found["fused_norm"].module == "MLP.norm"
    hidden = found["ncclAllReduce"]
    assert (hidden.kind, hidden.own_ns, hidden.busy_ns, hidden.message_bytes) == (
        "communication",
        0,
        30_000,
        16_384,
    )


@pytest.mark.parametrize(
    ("after", "cause", "where"),
    [
        (step(140), "kernel_slower", "gemm in aten::linear > aten::addmm"),
        (step(fused=False), "fusion_lost", "in MLP.norm"),
        (step(late=50), "synchronisation", "fused_norm"),
        (step(reduce_at=105), "overlap_lost", "ncclAllReduce"),
        (step(pieces=4), "smaller_messages", "ncclAllReduce"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_changed_is_named_first_and_adds_up(
    tmp_path: Path, after: list[Event], cause: str, where: str
) -> None:
    change = changed(tmp_path, after)
    first = change.causes[0]
    assert (first.cause, where in first.where) == (cause, True), change.causes
    assert change.change_us > 0
    for parts in (change.parts, change.causes):
        assert sum(part.change_us for part in parts) == pytest.approx(change.change_us)


def test_more_places_than_are_kept_are_summed(tmp_path: Path) -> None:
    events = [kernel(f"kernel{n}", 10 * n, 5 + n % 3) for n in range(MAX_MEAN_PARTS + 50)]
    profile = profile_of(tmp_path, events)
    parts = mean_parts([profile])
    assert any(part.kernel == REST for part in parts)
    assert sum(part.own_us for part in parts) == pytest.approx(profile.breakdown.total_ns / 1000)


def test_a_summary_of_an_older_release_has_no_parts_and_only_terms_are_compared(tmp_path: Path) -> None:
    old, new = profile_of(tmp_path, step()), profile_of(tmp_path, step(140))
    old.parts = []
    change = compare([old], [new])
    assert not change.parts
    assert not change.causes
    assert change.change_us == pytest.approx(40.0)
