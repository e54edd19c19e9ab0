"""Kind, group and size of one rank's collectives, and the time per group."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.trace.builders import Event, collective, host_event, kernel, launch, profile_of, shapes
from tools.trace.collectives import time_exposed_kinds, time_groups
from tools.trace.record import cover

ALL_GATHER = "ncclDevKernel_AllGather_RING_LL"
GROUP_OF_8 = {"Group size": 8, "Process Group Name": "3", "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]"}
SIZES = {
    "Collective name": "_allgather_base",
    "In msg nelems": 100,
    "Out msg nelems": 800,
    "dtype": "BFloat16",
}
TOO_LARGE = {"Collective name": "allgather", "In msg nelems": 2**60, "Group size": 2**60, "dtype": "Float"}
PARAM_COMMS = {"Input Dims": [[[4, 2048, 4096]], []], "Input type": ["TensorList", "Scalar"]}


def launched(name: str, annotation: str) -> list[Event]:
    """A kernel without arguments of its own, launched inside an annotated op."""
    return [
        host_event("cpu_op", "record_param_comms", 0, 20, args=PARAM_COMMS),
        host_event("user_annotation", annotation, 2, 15),
        launch(5, 3, 1),
        kernel(name, 30, 10, stream=9, correlation=1),
    ]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (
            [kernel(ALL_GATHER, 0, 10, args=SIZES | GROUP_OF_8)],
            {
                "kind": "all_gather",
                "group": "3",
                "group_size": 8,
                "message_bytes": 1600,
                "ranks": (*range(8),),
            },
        ),
        ([kernel(ALL_GATHER, 0, 10, args=TOO_LARGE)], {"message_bytes": None}),
        (
            launched("ncclDevKernel_AllReduce_Sum_f16_RING_LL", "nccl:all_reduce"),
            {"kind": "all_reduce", "message_bytes": 4 * 2048 * 4096 * 2, "group_size": 8},
        ),
        (launched("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "nccl:all_to_all"), {"kind": "all_to_all"}),
        (
            [
                host_event("cpu_op", "aten::mm", 0, 5),
                host_event("user_annotation", "gloo:all_reduce", 10, 5, args=shapes([1000])),
            ],
            {"kind": "all_reduce", "message_bytes": 4000},
        ),
    ],
    ids=[
        "a kernel's own arguments come first",
        "a size that no memory holds is not reported",
        "the launching op has the shapes that the kernel lacks",
        "the annotation names the kind that a kernel hides",
        "gloo spans carry their dims",
    ],
)
def test_a_collective_is_described_by_what_the_trace_has(
    tmp_path: Path, events: list[Event], expected: dict[str, object]
) -> None:
    (event,) = profile_of(tmp_path, events, distributedInfo={"rank": 0, "world_size": 8}).collectives
    assert {name: getattr(event, name) for name in expected} == expected


def test_what_the_rank_did_before_a_collective_is_kept(tmp_path: Path) -> None:
    events = [
        kernel("ncclDevKernel_AllReduce", 0, 10, stream=9),
        kernel("gemm", 12, 20),
        host_event("user_annotation", "enumerate(DataLoader)#next", 33, 4),
        launch(40, 5, 1),
        kernel("ncclDevKernel_AllReduce", 45, 10, stream=9, correlation=1),
    ]
    _, second = profile_of(tmp_path, events).collectives
    before = (second.before_compute_ns, second.before_host_ns, second.before_loader_ns)
    assert before == (20_000, 13_000, 4_000)


COMPUTE = cover(np.array([0, 100]), np.array([50, 150]))


def test_each_group_has_its_own_time_and_exposure() -> None:
    events = [collective(40, 60, (0, 1)), collective(60, 110, (0, 2)), collective(110, 120, (0, 1))]
    times = {group.ranks: (group.time_ns, group.exposed_ns) for group in time_groups(events, COMPUTE)}
    assert times == {(0, 1): (30, 10), (0, 2): (50, 40)}
    assert time_groups([], COMPUTE) == []


def test_a_kind_counts_time_shared_by_two_groups_once() -> None:
    events = [collective(50, 80, (0, 1), kind="send_recv"), collective(60, 90, (0, 2), kind="send_recv")]
    assert time_exposed_kinds(events, COMPUTE) == {"send_recv": 40}
