"""Communication is recognised by name, process group, stream and the user's patterns."""

from pathlib import Path

import pytest

from tests.unit.trace.builders import host_event, kernel, write
from tools.errors import InputError
from tools.trace.classify import (
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    CommunicationPatterns,
    Work,
    classify,
    load_patterns,
    with_user_kernels,
)
from tools.trace.kineto import read_kineto


def _classify(path: Path, patterns: CommunicationPatterns | None = None) -> Work:
    return classify(read_kineto(path), patterns or load_patterns())


@pytest.mark.parametrize(
    "name",
    [
        "ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*)",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)",
        "void deep_ep::internode_ll::dispatch<true, 9>(int)",
        "nvshmemi_transfer_rma_nbi",
        "rcclKernel_Broadcast",
        "all-reduce.17",
        "%all-gather-start.3",
    ],
)
def test_libraries_of_collectives_are_known_by_name(tmp_path: Path, name: str) -> None:
    assert _classify(write(tmp_path, [kernel(name, 0, 1)])).work_class.tolist() == [COMMUNICATION]


@pytest.mark.parametrize(
    "name", ["void at::native::reduce_kernel<512>", "ampere_gemm", "fusion.12", "sendmail"]
)
def test_other_kernels_compute(tmp_path: Path, name: str) -> None:
    assert _classify(write(tmp_path, [kernel(name, 0, 1)])).work_class.tolist() == [COMPUTE]


def test_a_process_group_makes_a_kernel_communicate(tmp_path: Path) -> None:
    mine = kernel("my_kernel", 0, 1, args={"Process Group Name": "tp", "Collective name": "allreduce"})
    assert _classify(write(tmp_path, [mine])).work_class.tolist() == [COMMUNICATION]


def test_a_copy_with_a_process_group_stays_a_copy(tmp_path: Path) -> None:
    group = {"Process Group Name": "tp", "Collective name": "allgather"}
    copy = kernel("Memcpy PtoP", 0, 5, stream=3, args=group) | {"cat": "gpu_memcpy"}
    assert _classify(write(tmp_path, [copy, kernel("gemm", 9, 3)])).work_class.tolist() == [MEMORY, COMPUTE]


def test_an_unknown_kernel_on_a_stream_of_collectives_communicates(tmp_path: Path) -> None:
    known = [kernel("ncclDevKernel_AllGather", i * 10, 5, stream=20) for i in range(20)]
    events = [*known, kernel("my_push", 300, 5, stream=20), kernel("my_push", 400, 5, stream=7)]
    assert _classify(write(tmp_path, events)).work_class.tolist() == [COMMUNICATION] * 21 + [COMPUTE]


def test_a_compute_kernel_on_a_stream_of_collectives_still_computes(tmp_path: Path) -> None:
    known = [kernel("ncclDevKernel_AllGather", i * 10, 5, stream=20) for i in range(20)]
    events = [*known, kernel("void at::native::vectorized_elementwise_kernel", 300, 5, stream=20)]
    assert _classify(write(tmp_path, events)).work_class.tolist()[-1] == COMPUTE


def test_the_users_own_pattern_counts(tmp_path: Path) -> None:
    patterns = with_user_kernels(load_patterns(), ["^my_push"])
    assert _classify(write(tmp_path, [kernel("my_push", 0, 1)]), patterns).work_class.tolist() == [
        COMMUNICATION
    ]


def test_a_pattern_that_is_no_regular_expression_is_the_users_error() -> None:
    with pytest.raises(InputError, match="regular expressions"):
        with_user_kernels(load_patterns(), ["("])


def test_gloo_spans_communicate_where_there_is_no_device(tmp_path: Path) -> None:
    events = [host_event("cpu_op", "aten::mm", 0, 5), host_event("user_annotation", "gloo:all_reduce", 5, 9)]
    work = _classify(write(tmp_path, events))
    assert work.basis == "host"
    assert work.work_class.tolist() == [COMPUTE, COMMUNICATION]


def test_an_op_around_a_wait_does_not_compute_and_the_ops_in_it_do(tmp_path: Path) -> None:
    """FSDP2 waits for its reduce-scatter inside an autograd node."""
    events = [
        host_event("cpu_op", "RegisterPostBackwardFunctionBackward", 0, 100),
        host_event("cpu_op", "aten::copy_", 1, 5),
        host_event("user_annotation", "FSDP::post_backward_reduce (layers.3)", 10, 80),
        host_event("cpu_op", "aten::mm", 200, 5),
        host_event("user_annotation", "gloo:all_reduce", 10, 80, thread=2),
    ]
    work = _classify(write(tmp_path, events))
    spans = work.of_class(COMPUTE)
    assert spans.duration_ns.tolist() == [5_000, 5_000]


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
