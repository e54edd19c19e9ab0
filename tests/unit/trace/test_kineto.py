"""Kineto files: categories of old and new writers, odd types, ranks and groups, memory events."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.trace.builders import kernel, profile_of, trace_of, write
from tools.trace.folder import profile_folder
from tools.trace.record import UnreadableTraceError

FINE = kernel("fine", 0, 5)


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


def test_memory_events_with_totals_become_a_counter_per_device_whose_peak_is_kept(tmp_path: Path) -> None:
    def event(time: int, kind: int, size: int) -> dict[str, Any]:
        device = {"Device Type": kind, "Device Id": 0}
        args = device | {"Total Allocated": size, "Total Reserved": size * 2}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": time, "args": args}

    events = [event(3, 1, 70), event(2, 1, 30), event(1, 1, 10), event(1, 0, 99)]
    del events[0]["args"]["Total Reserved"]
    accelerator, host = trace_of(tmp_path, events).memory
    assert (accelerator.is_accelerator, host.is_accelerator) == (True, False)
    assert accelerator.allocated_bytes.tolist() == [10, 30]
    many = [event(time, 1, 999 if time == 3333 else 5) for time in range(5000)]
    memory = profile_of(tmp_path, [*many, event(1, 0, 9999)]).memory
    assert memory is not None
    assert len(memory.allocated_bytes) <= 200
    assert max(memory.allocated_bytes) == memory.peak_allocated_bytes == 999


def test_a_group_size_that_no_profile_can_hold_counts_as_absent(tmp_path: Path) -> None:
    """It killed the process that read the file."""
    args = {"Collective name": "allreduce", "Group size": 2**64}
    write(tmp_path, [kernel("ncclDevKernel_AllReduce", 0, 5, args=args)])
    (rank,) = profile_folder(tmp_path).ranks
    assert [event.group_size for event in rank.collectives] == [None]
