"""Work of ops from their shapes, and their place under the roof."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.trace.builders import host_event, kernel, launch, shapes, write
from tools.hardware import get_device
from tools.trace.classify import classify, load_patterns
from tools.trace.kineto import read_kineto
from tools.trace.record import OpArguments
from tools.trace.roofline import RoofPoint, find_work, place_on_roofline

HALF = "c10::Half"


@pytest.mark.parametrize(
    ("name", "dims", "flops", "moved_bytes"),
    [
        ("aten::mm", [[64, 32], [32, 16]], 2 * 64 * 32 * 16, 2 * (64 * 32 + 32 * 16 + 64 * 16)),
        ("aten::addmm", [[16], [64, 32], [32, 16]], 2 * 64 * 32 * 16, 2 * (64 * 32 + 32 * 16 + 64 * 16)),
        ("aten::bmm", [[4, 64, 32], [4, 32, 16]], 8 * 64 * 32 * 16, 8 * (64 * 32 + 32 * 16 + 64 * 16)),
    ],
)
def test_matrix_work_is_counted_from_shapes(
    name: str, dims: list[list[int]], flops: int, moved_bytes: int
) -> None:
    work = find_work(name, OpArguments(tuple(dims), (HALF,) * len(dims), ()))
    assert work is not None
    assert (work.flops, work.moved_bytes, work.precision) == (flops, moved_bytes, "fp16")


def test_attention_counts_two_products_forward_and_five_backward() -> None:
    shape = [2, 8, 128, 64]
    forward = find_work("aten::_flash_attention_forward", OpArguments((shape,) * 3, (HALF,) * 3, ()))
    backward = find_work("aten::_flash_attention_backward", OpArguments((shape,) * 4, (HALF,) * 4, ()))
    assert forward is not None
    assert backward is not None
    assert forward.flops == 4 * 2 * 8 * 128 * 128 * 64
    assert backward.flops == 2.5 * forward.flops


def _attention_flops(name: str, concrete: list[str]) -> float:
    tensors = ([2, 8, 128, 64],) * 4
    work = find_work(name, OpArguments(tensors, (HALF,) * 4, tuple(concrete)))
    assert work is not None
    return work.flops


@pytest.mark.parametrize(
    ("name", "argument", "value"),
    [
        ("aten::_flash_attention_forward", "is_causal", "True"),
        ("aten::_flash_attention_backward", "is_causal", "True"),
        ("aten::_efficient_attention_forward", "custom_mask_type", "1"),
        ("aten::_efficient_attention_backward", "custom_mask_type", "1"),
        ("aten::_scaled_dot_product_cudnn_attention", "is_causal", "True"),
        ("aten::_scaled_dot_product_cudnn_attention_backward", "is_causal", "True"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "is_causal", "True"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "is_causal", "True"),
    ],
)
def test_causal_attention_does_half_and_no_other_flag_does(name: str, argument: str, value: str) -> None:
    """The places are those of PyTorch's own schemas; compute_log_sumexp is true in any training."""
    torch: Any = pytest.importorskip("torch")
    schema = getattr(torch.ops.aten, name.removeprefix("aten::")).default._schema
    names = [one.name for one in schema.arguments]
    others = ["True" if str(one.type) == "bool" and one.name != argument else "" for one in schema.arguments]
    causal = [value if one == argument else "" for one in names]
    assert _attention_flops(name, causal) * 2 == _attention_flops(name, others)


def test_flash_attn_s_own_ops_are_causal_by_their_own_argument() -> None:
    forward = ["", "", "", "0.", "0.125", "True", "-1", "-1", "0.", "", "False"]
    plain = [*forward[:5], "False", *forward[6:]]
    name = "flash_attn::_flash_attn_forward"
    assert _attention_flops(name, forward) * 2 == _attention_flops(name, plain)


def test_attention_over_nothing_is_no_work() -> None:
    """An empty batch is a real shape; a rate over no bytes is none."""
    for shape in ([0, 16, 8, 64], [2, 0, 8, 64], [2, 16, 8, 0]):
        assert find_work("aten::_flash_attention_forward", OpArguments((shape,) * 3, (HALF,) * 3, ())) is None


@pytest.mark.parametrize(
    "dims", [[], [[64, 32]], [[64, 32], [31, 16]], [[64], [64]], [["a"], ["b"]], [[0, 4], [4, 4]]]
)
def test_shapes_that_do_not_fit_give_no_work(dims: list[object]) -> None:
    assert find_work("aten::mm", OpArguments(tuple(dims), (HALF, HALF), ())) is None


def test_integer_products_have_no_place_on_the_roofline() -> None:
    assert find_work("aten::mm", OpArguments(([4, 4], [4, 4]), ("long int", "long int"), ())) is None


def test_a_kernel_belongs_to_the_op_that_launched_it(tmp_path: Path) -> None:
    dims = shapes([4096, 4096], [4096, 4096], dtype=HALF)
    events = [
        host_event("cpu_op", "aten::mm", 0, 20, args=dims),
        launch(5, 3, 1),
        launch(12, 3, 2),
        launch(30, 3, 3),
        kernel("gemm", 40, 600, correlation=1),
        kernel("splitk", 640, 40, correlation=2),
        kernel("relu", 700, 40, correlation=3),
    ]
    trace = read_kineto(write(tmp_path, events))
    device = get_device("a100-sxm-80gb")
    (point,) = place_on_roofline(trace, classify(trace, load_patterns()), device)
    assert point.time_ns == 640_000
    assert point.bound == "compute"
    assert point.achieved_flops_per_s == pytest.approx(2 * 4096**3 / 640e-6)
    assert point.lost_ns == pytest.approx(640_000 - 2 * 4096**3 / device.peak_flops["fp16"] * 1e9)


def test_float32_faster_than_its_peak_ran_in_tf32(tmp_path: Path) -> None:
    dims = shapes([4096, 4096], [4096, 4096])
    events = [
        host_event("cpu_op", "aten::mm", 0, 20, args=dims),
        launch(5, 3, 1),
        kernel("gemm", 40, 1300, correlation=1),
    ]
    trace = read_kineto(write(tmp_path, events))
    (point,) = place_on_roofline(trace, classify(trace, load_patterns()), get_device("a100-sxm-80gb"))
    assert point.precision == "tf32"
    assert point.lost_ns is not None


def test_without_a_catalogue_entry_there_is_a_rate_but_no_roof() -> None:
    point = RoofPoint("aten::mm", "1×1×1", "fp16", 1, 1000, 2e6, 1e3)
    assert point.achieved_flops_per_s == pytest.approx(2e12)
    assert (point.bound, point.lost_ns) == (None, None)
