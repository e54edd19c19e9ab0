"""Kineto files: categories of old and new writers, odd types, ranks and groups, memory events."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trace.builders import host_event, kernel, trace_of
from tools.trace.folder import profile_folder
from tools.trace.kineto import read_kineto
from tools.trace.record import NO_LINK, UnreadableTraceError

FINE = kernel("fine", 0, 5)


@pytest.mark.parametrize("names", [("kernel", "gpu_memcpy"), ("Kernel", "Memcpy"), ("kernel", "Memset")])
def test_kernels_copies_and_sets_of_old_and_new_writers_are_device_events(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    others = ["cpu_op", "python_function", "ac2g", "overhead", "gpu_user_annotation", "Trace", "fwdbwd"]
    events = [kernel("a", 5 * i, 5) | {"cat": name} for i, name in enumerate(names)]
    trace = trace_of(tmp_path, [*events, *(host_event(category, "x", 0, 9) for category in others)])
    assert len(trace.device) == 2
    assert sorted(trace.is_memory.tolist()) == [False, True]


def test_times_are_exact_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(
        '{"traceEvents": [{"cat": "kernel", "name": "k", "ts": 1712195495505582.988, "dur": 4.928}]}'
    )
    device = read_kineto(path).device
    assert (device.start_ns.tolist(), device.duration_ns.tolist()) == ([1712195495505582988], [4928])


def test_streams_as_texts_and_missing_correlations_are_accepted(tmp_path: Path) -> None:
    events = [kernel("a", 0, 5), kernel("b", 5, 5), kernel("c", 9, 1)]
    events[0]["args"] = {"stream": "0x7f", "correlation": "9"}
    events[1]["args"] = {"stream": None}
    device = trace_of(tmp_path, events).device
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
        trace_of(tmp_path, [FINE, broken])


def test_rank_groups_and_device_come_from_the_metadata(tmp_path: Path) -> None:
    groups = [{"pg_name": "1", "pg_desc": "tp", "ranks": [2, 3]}, {"pg_name": 7}]
    info = {"rank": 3, "world_size": 8, "backend": "nccl", "pg_config": groups}
    trace = trace_of(tmp_path, [FINE], distributedInfo=info, deviceProperties=[{"name": "NVIDIA B200"}])
    assert (trace.distributed.rank, trace.distributed.groups) == (3, {"1": (2, 3)})
    assert trace.distributed.group_descriptions["1"] == "tp"
    assert trace.device_name == "NVIDIA B200"


@pytest.mark.parametrize("info", [5, {"rank": "3"}, {"rank": -1}, {"rank": True}, {"rank": 10**30}, []])
def test_strange_distributed_info_counts_as_absent(tmp_path: Path, info: object) -> None:
    assert trace_of(tmp_path, [FINE], distributedInfo=info).distributed.rank is None


def test_host_ops_are_kept_where_there_is_no_device(tmp_path: Path) -> None:
    ops = [host_event("cpu_op", "aten::add", 0, 5), host_event("cpu_op", "aten::mul", 5, 5)]
    assert len(trace_of(tmp_path, ops).host_ops) == 2
    assert len(trace_of(tmp_path, [*ops, FINE]).host_ops) == 0


def test_memory_events_with_totals_become_a_counter_per_device(tmp_path: Path) -> None:
    def event(time: int, kind: int, size: int) -> dict[str, Any]:
        device = {"Device Type": kind, "Device Id": 0}
        args = device | {"Total Allocated": size, "Total Reserved": size * 2}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": time, "args": args}

    events = [event(3, 1, 70), event(2, 1, 30), event(1, 1, 10), event(1, 0, 99)]
    del events[0]["args"]["Total Reserved"]
    accelerator, host = trace_of(tmp_path, events).memory
    assert (accelerator.is_accelerator, host.is_accelerator) == (True, False)
    assert accelerator.allocated_bytes.tolist() == [10, 30]


def test_a_group_size_that_no_profile_can_hold_counts_as_absent(tmp_path: Path) -> None:
    """It killed the process that read the file."""
    reduce = kernel("ncclDevKernel_AllReduce", 0, 5)
    reduce["args"] = {"stream": 7, "Collective name": "allreduce", "Group size": 2**64}
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [reduce]}))
    (rank,) = profile_folder(tmp_path).ranks
    assert [event.group_size for event in rank.collectives] == [None]
