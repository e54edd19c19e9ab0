"""Kineto files: categories of old and new writers, odd types, ranks and groups, memory events."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.trace.builders import host_event, kernel, write
from tools.trace.kineto import read_kineto
from tools.trace.record import NO_LINK, UnreadableTraceError


@pytest.mark.parametrize(
    ("kernel_category", "copy_category"),
    [("kernel", "gpu_memcpy"), ("Kernel", "Memcpy"), ("kernel", "Memset")],
)
def test_old_and_new_category_names_are_device_events(
    tmp_path: Path, kernel_category: str, copy_category: str
) -> None:
    events = [kernel("a", 0, 5) | {"cat": kernel_category}, kernel("b", 5, 5) | {"cat": copy_category}]
    trace = read_kineto(write(tmp_path, events))
    assert len(trace.device) == 2
    assert sorted(trace.is_memory.tolist()) == [False, True]


def test_only_kernels_copies_and_sets_are_device_events(tmp_path: Path) -> None:
    others = ["cpu_op", "python_function", "ac2g", "overhead", "gpu_user_annotation", "Trace", "fwdbwd"]
    events = [kernel("a", 0, 5), *(host_event(category, "x", 0, 9) for category in others)]
    assert len(read_kineto(write(tmp_path, events)).device) == 1


def test_times_are_exact_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(
        '{"traceEvents": [{"cat": "kernel", "name": "k", "ts": 1712195495505582.988, "dur": 4.928}]}'
    )
    device = read_kineto(path).device
    assert device.start_ns.tolist() == [1712195495505582988]
    assert device.duration_ns.tolist() == [4928]


def test_streams_as_texts_and_missing_correlations_are_accepted(tmp_path: Path) -> None:
    events = [kernel("a", 0, 5), kernel("b", 5, 5), kernel("c", 9, 1)]
    events[0]["args"] = {"stream": "0x7f", "correlation": "9"}
    events[1]["args"] = {"stream": None}
    device = read_kineto(write(tmp_path, events)).device
    assert len(device) == 3
    assert device.link.tolist()[1] == NO_LINK


@pytest.mark.parametrize(
    ("start", "length", "reason"),
    [
        (5, -1, "the duration of 'broken' is negative"),
        (9e15, 9e15, "the duration of 'broken' is out of range"),
        (0, 9e15, "the duration of 'broken' is out of range"),
        (-9e15, 5, "the start of 'broken' is out of range"),
        (None, 5, "not a number"),
    ],
)
def test_times_that_cannot_be_computed_with_are_refused_by_name(
    tmp_path: Path, start: float | None, length: float, reason: str
) -> None:
    broken = kernel("broken", start or 0, length)
    if start is None:
        del broken["ts"]
    with pytest.raises(UnreadableTraceError, match=reason):
        read_kineto(write(tmp_path, [kernel("fine", 0, 5), broken]))


def test_rank_groups_and_device_come_from_the_metadata(tmp_path: Path) -> None:
    info = {
        "rank": 3,
        "world_size": 8,
        "backend": "nccl",
        "pg_config": [{"pg_name": "1", "pg_desc": "tp", "ranks": [2, 3]}, {"pg_name": 7}],
    }
    path = write(
        tmp_path, [kernel("a", 0, 1)], distributedInfo=info, deviceProperties=[{"name": "NVIDIA B200"}]
    )
    trace = read_kineto(path)
    assert trace.distributed.rank == 3
    assert trace.distributed.groups == {"1": (2, 3)}
    assert trace.distributed.group_descriptions["1"] == "tp"
    assert trace.device_name == "NVIDIA B200"


@pytest.mark.parametrize("info", [5, {"rank": "3"}, {"rank": -1}, {"rank": True}, {"rank": 10**30}, []])
def test_strange_distributed_info_counts_as_absent(tmp_path: Path, info: object) -> None:
    assert read_kineto(write(tmp_path, [kernel("a", 0, 1)], distributedInfo=info)).distributed.rank is None


def test_host_ops_are_kept_where_there_is_no_device(tmp_path: Path) -> None:
    ops = [host_event("cpu_op", "aten::add", 0, 5), host_event("cpu_op", "aten::mul", 5, 5)]
    assert len(read_kineto(write(tmp_path, ops)).host_ops) == 2
    assert len(read_kineto(write(tmp_path, [*ops, kernel("a", 0, 1)])).host_ops) == 0


def test_memory_events_with_totals_become_a_counter_per_device(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = [
        {
            "ph": "i",
            "cat": "cpu_instant_event",
            "name": "[memory]",
            "ts": time,
            "args": {
                "Device Type": kind,
                "Device Id": 0,
                "Total Allocated": size,
                "Total Reserved": size * 2,
            },
        }
        for time, kind, size in ((3, 1, 70), (2, 1, 30), (1, 1, 10), (1, 0, 99))
    ]
    del events[0]["args"]["Total Reserved"]
    accelerator, host = read_kineto(write(tmp_path, events)).memory
    assert accelerator.is_accelerator
    assert not host.is_accelerator
    assert accelerator.allocated_bytes.tolist() == [10, 30]
