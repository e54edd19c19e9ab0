"""Kind, group and size of one rank's collectives, and the time per group."""

from pathlib import Path

import numpy as np
import pytest

from tests.unit.trace.builders import collective, host_event, kernel, launch, profile_of
from tools.trace.collectives import count_elements, time_exposed_kinds, time_groups
from tools.trace.record import cover


def test_a_kernels_own_arguments_come_first(tmp_path: Path) -> None:
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 100,
        "Out msg nelems": 800,
        "Group size": 8,
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }
    (one,) = profile_of(tmp_path, [kernel("ncclDevKernel_AllGather_RING_LL", 0, 10, args=args)]).collectives
    assert (one.kind, one.group, one.group_size, one.message_bytes) == ("all_gather", "3", 8, 1600)
    assert one.ranks == tuple(range(8))


def test_a_size_that_no_memory_holds_is_not_told(tmp_path: Path) -> None:
    args = {"Collective name": "allgather", "In msg nelems": 2**60, "Group size": 2**60, "dtype": "Float"}
    (one,) = profile_of(tmp_path, [kernel("ncclDevKernel_AllGather_RING_LL", 0, 10, args=args)]).collectives
    assert one.message_bytes is None


def test_the_launching_op_gives_shapes_where_the_kernel_has_none(tmp_path: Path) -> None:
    shapes = {"Input Dims": [[[4, 2048, 4096]], []], "Input type": ["TensorList", "Scalar"]}
    events = [
        host_event("cpu_op", "record_param_comms", 0, 20, args=shapes),
        host_event("user_annotation", "nccl:all_reduce", 2, 15),
        launch(5, 3, 1),
        kernel("ncclDevKernel_AllReduce_Sum_f16_RING_LL", 30, 10, stream=9, correlation=1),
    ]
    (one,) = profile_of(tmp_path, events, distributedInfo={"rank": 0, "world_size": 8}).collectives
    assert (one.kind, one.message_bytes, one.group_size) == ("all_reduce", 4 * 2048 * 4096 * 2, 8)


def test_the_annotation_names_the_kind_that_a_kernel_hides(tmp_path: Path) -> None:
    events = [
        host_event("user_annotation", "nccl:all_to_all", 2, 15),
        launch(5, 3, 1),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", 30, 10, stream=9, correlation=1),
    ]
    (one,) = profile_of(tmp_path, events).collectives
    assert one.kind == "all_to_all"


def test_gloo_spans_carry_their_dims(tmp_path: Path) -> None:
    span = host_event(
        "user_annotation", "gloo:all_reduce", 10, 5, args={"Input Dims": [[1000]], "Input type": ["float"]}
    )
    (one,) = profile_of(tmp_path, [host_event("cpu_op", "aten::mm", 0, 5), span]).collectives
    assert (one.kind, one.message_bytes) == ("all_reduce", 4000)


def test_what_the_rank_did_before_a_collective_is_kept(tmp_path: Path) -> None:
    events = [
        kernel("ncclDevKernel_AllReduce", 0, 10, stream=9),
        kernel("gemm", 12, 20),
        host_event("user_annotation", "enumerate(DataLoader)#next", 33, 4),
        launch(40, 5, 1),
        kernel("ncclDevKernel_AllReduce", 45, 10, stream=9, correlation=1),
    ]
    _, second = profile_of(tmp_path, events).collectives
    assert second.before_compute_ns == 20_000
    assert second.before_host_ns == 13_000
    assert second.before_loader_ns == 4_000


COMPUTE = cover(np.array([0, 100]), np.array([50, 150]))


def test_each_group_has_its_own_time_and_exposure() -> None:
    events = [collective(40, 60, (0, 1)), collective(60, 110, (0, 2)), collective(110, 120, (0, 1))]
    found = {one.ranks: (one.time_ns, one.exposed_ns) for one in time_groups(events, COMPUTE)}
    assert found == {(0, 1): (30, 10), (0, 2): (50, 40)}


def test_a_kind_counts_time_shared_by_two_groups_once() -> None:
    events = [collective(50, 80, (0, 1), kind="send_recv"), collective(60, 90, (0, 2), kind="send_recv")]
    assert time_exposed_kinds(events, COMPUTE) == {"send_recv": 40}


def test_no_collectives_are_no_groups() -> None:
    assert time_groups([], COMPUTE) == []


@pytest.mark.parametrize(
    ("dims", "elements"),
    [
        ([4, 5], 20),
        ([[4, 5], [2]], 22),
        ([], None),
        ("x", None),
        ([["a"]], None),
        ([-1], None),
        ([2**45], None),
    ],
)
def test_elements_are_counted_for_tensors_and_lists(dims: object, elements: int | None) -> None:
    assert count_elements(dims) == elements
