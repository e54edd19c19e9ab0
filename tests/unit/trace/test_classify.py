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


def test_without_a_device_host_ops_compute_unless_they_wait_and_gloo_spans_communicate(
    tmp_path: Path,
) -> None:
    """FSDP2 waits for its reduce-scatter inside an autograd node; the ops in it compute."""
    events = [
        host_event("cpu_op", "RegisterPostBackwardFunctionBackward", 0, 100),
        host_event("cpu_op", "aten::copy_", 1, 5),
        host_event("user_annotation", "FSDP::post_backward_reduce (layers.3)", 10, 80),
        host_event("cpu_op", "aten::mm", 200, 5),
        host_event("user_annotation", "gloo:all_reduce", 10, 80, thread=2),
    ]
    work = work_of(tmp_path, events)
    assert work.basis == "host"
    assert work.of_class(COMPUTE).duration_ns.tolist() == [5_000, 5_000]
    assert work.of_class(COMMUNICATION).duration_ns.tolist() == [80_000]
