"""Kind, group and size of one rank's collectives, from whatever the trace says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.trace.classify import load_patterns
from tools.trace.collectives import CollectiveEvent
from tools.trace.kineto import read_kineto
from tools.trace.rank_profile import profile_rank

Make = Callable[..., dict[str, Any]]


def _collectives(path: Path) -> list[CollectiveEvent]:
    return profile_rank(read_kineto(path), load_patterns()).collectives


def test_a_kernels_own_arguments_come_first(write_trace: Callable[..., Path], kernel: Make) -> None:
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 100,
        "Out msg nelems": 800,
        "Group size": 8,
        "dtype": "BFloat16",
        "Process Group Name": "3",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
    }
    (one,) = _collectives(write_trace([kernel("ncclDevKernel_AllGather_RING_LL", 0, 10, **args)]))
    assert (one.kind, one.group, one.group_size, one.message_bytes) == ("all_gather", "3", 8, 1600)
    assert one.ranks == tuple(range(8))


def test_a_size_that_no_memory_holds_is_not_told(write_trace: Callable[..., Path], kernel: Make) -> None:
    args = {"Collective name": "allgather", "In msg nelems": 2**60, "Group size": 2**60, "dtype": "Float"}
    (one,) = _collectives(write_trace([kernel("ncclDevKernel_AllGather_RING_LL", 0, 10, **args)]))
    assert one.message_bytes is None


def test_the_launching_op_gives_shapes_where_the_kernel_has_none(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    shapes = {"Input Dims": [[[4, 2048, 4096]], []], "Input type": ["TensorList", "Scalar"]}
    events = [
        host_event("cpu_op", "record_param_comms", 0, 20, **shapes),
        host_event("user_annotation", "nccl:all_reduce", 2, 15),
        host_event("cuda_runtime", "cudaLaunchKernel", 5, 3, correlation=1),
        kernel("ncclDevKernel_AllReduce_Sum_f16_RING_LL", 30, 10, stream=9, correlation=1),
    ]
    (one,) = _collectives(write_trace(events, distributedInfo={"rank": 0, "world_size": 8}))
    assert (one.kind, one.message_bytes, one.group_size) == ("all_reduce", 4 * 2048 * 4096 * 2, 8)


def test_the_annotation_names_the_kind_that_a_kernel_hides(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    events = [
        host_event("user_annotation", "nccl:all_to_all", 2, 15),
        host_event("cuda_runtime", "cudaLaunchKernel", 5, 3, correlation=1),
        kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", 30, 10, stream=9, correlation=1),
    ]
    (one,) = _collectives(write_trace(events))
    assert one.kind == "all_to_all"


def test_gloo_spans_carry_their_dims(write_trace: Callable[..., Path], host_event: Make) -> None:
    span = host_event(
        "user_annotation", "gloo:all_reduce", 10, 5, **{"Input Dims": [[1000]], "Input type": ["float"]}
    )
    (one,) = _collectives(write_trace([host_event("cpu_op", "aten::mm", 0, 5), span]))
    assert (one.kind, one.message_bytes) == ("all_reduce", 4000)


def test_what_the_rank_did_before_a_collective_is_kept(
    write_trace: Callable[..., Path], kernel: Make, host_event: Make
) -> None:
    events = [
        kernel("ncclDevKernel_AllReduce", 0, 10, stream=9),
        kernel("gemm", 12, 20),
        host_event("user_annotation", "enumerate(DataLoader)#next", 33, 4),
        host_event("cuda_runtime", "cudaLaunchKernel", 40, 5, correlation=1),
        kernel("ncclDevKernel_AllReduce", 45, 10, stream=9, correlation=1),
    ]
    _, second = _collectives(write_trace(events))
    assert second.before_compute_ns == 20_000
    assert second.before_host_ns == 13_000
    assert second.before_loader_ns == 4_000
