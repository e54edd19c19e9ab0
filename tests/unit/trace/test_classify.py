"""Communication is recognised by name, process group, stream and the user's patterns."""

from pathlib import Path

import pytest

from tests.unit.trace.builders import Event, host_event, kernel, work_of
from tools.errors import InputError
from tools.trace.classify import COMMUNICATION, COMPUTE, MEMORY, load_patterns, with_user_kernels

LIBRARIES = [
    "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
    "void deep_ep::internode_ll::dispatch<true, 9>(int)",
    "nvshmemi_transfer_rma_nbi",
    "rcclKernel_Broadcast",
    "all-reduce.17",
    "%all-gather-start.3",
]
OTHERS = ["void at::native::reduce_kernel<512>", "ampere_gemm", "fusion.12", "sendmail"]
COLLECTIVES = [kernel("ncclDevKernel_AllGather", i * 10, 5, stream=20) for i in range(20)]
GROUP = {"Process Group Name": "tp", "Collective name": "allgather"}
COPY = kernel("Memcpy PtoP", 0, 5, stream=3, args=GROUP) | {"cat": "gpu_memcpy"}
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel"


@pytest.mark.parametrize(
    ("events", "classes"),
    [
        ([kernel(name, 0, 1) for name in LIBRARIES], [COMMUNICATION] * len(LIBRARIES)),
        ([kernel(name, 0, 1) for name in OTHERS], [COMPUTE] * len(OTHERS)),
        ([kernel("my_kernel", 0, 1, args=GROUP)], [COMMUNICATION]),
        ([COPY, kernel("gemm", 9, 3)], [MEMORY, COMPUTE]),
        (
            [*COLLECTIVES, kernel("my_push", 300, 5, stream=20), kernel("my_push", 400, 5, stream=7)],
            [COMMUNICATION] * 21 + [COMPUTE],
        ),
        ([*COLLECTIVES, kernel(ELEMENTWISE, 300, 5, stream=20)], [COMMUNICATION] * 20 + [COMPUTE]),
    ],
    ids=[
        "libraries of collectives are known by name",
        "other kernels compute",
        "a process group makes a kernel communicate",
        "a copy with a process group stays a copy",
        "an unknown kernel on a stream of collectives communicates",
        "a compute kernel on such a stream computes",
    ],
)
def test_each_kernel_has_its_class(tmp_path: Path, events: list[Event], classes: list[int]) -> None:
    assert work_of(tmp_path, events).work_class.tolist() == classes


def test_the_users_own_pattern_counts_if_it_is_a_regular_expression(tmp_path: Path) -> None:
    work = work_of(tmp_path, [kernel("my_push", 0, 1)], "^my_push")
    assert work.work_class.tolist() == [COMMUNICATION]
    with pytest.raises(InputError, match="regular expressions"):
        with_user_kernels(load_patterns(), ["("])


def test_without_a_device_gloo_spans_communicate(tmp_path: Path) -> None:
    events = [host_event("cpu_op", "aten::mm", 0, 5), host_event("user_annotation", "gloo:all_reduce", 5, 9)]
    work = work_of(tmp_path, events)
    assert (work.basis, work.work_class.tolist()) == ("host", [COMPUTE, COMMUNICATION])


def test_an_op_around_a_wait_does_not_compute_and_the_ops_in_it_do(tmp_path: Path) -> None:
    """FSDP2 waits for its reduce-scatter inside an autograd node."""
    events = [
        host_event("cpu_op", "RegisterPostBackwardFunctionBackward", 0, 100),
        host_event("cpu_op", "aten::copy_", 1, 5),
        host_event("user_annotation", "FSDP::post_backward_reduce (layers.3)", 10, 80),
        host_event("cpu_op", "aten::mm", 200, 5),
        host_event("user_annotation", "gloo:all_reduce", 10, 80, thread=2),
    ]
    assert work_of(tmp_path, events).of_class(COMPUTE).duration_ns.tolist() == [5_000, 5_000]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_AllReduce_Sum_f16", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("nccl:all_to_all", "all_to_all"),
        ("gloo:broadcast", "broadcast"),
        ("ncclDevKernel_SendRecv", "send_recv"),
        ("collective-permute.2", "send_recv"),
        ("ncclDevKernel_Generic", "other"),
    ],
)
def test_kinds_are_read_from_any_spelling(name: str, kind: str) -> None:
    assert load_patterns().find_kind(name) == kind
