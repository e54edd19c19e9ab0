"""Work of ops from their shapes, and their place under the roof."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.trace.builders import Event, host_event, kernel, launch, shapes, trace_of
from tools.hardware import get_device
from tools.trace.classify import classify, load_patterns
from tools.trace.record import OpArguments
from tools.trace.roofline import RoofPoint, find_work, place_on_roofline

HALF = "c10::Half"
SCALED = [f"{op}{way}" for op in ("cudnn_attention", "flash_attention_for_cpu") for way in ("", "_backward")]


def _attention_flops(name: str, concrete: list[str], tensors: int = 4) -> float:
    shapes = [[2, 8, 128, 64]] * tensors
    work = find_work(name, OpArguments(shapes, [HALF] * tensors, concrete), 1)
    assert work is not None
    return work.flops


def test_attention_counts_two_products_forward_and_five_backward() -> None:
    forward = _attention_flops("aten::_flash_attention_forward", [], 3)
    assert forward == 4 * 2 * 8 * 128 * 128 * 64
    assert _attention_flops("aten::_flash_attention_backward", []) == 2.5 * forward


@pytest.mark.parametrize(
    ("name", "flag", "value"),
    [
        *((f"_flash_attention_{way}", "is_causal", "True") for way in ("forward", "backward")),
        *((f"_efficient_attention_{way}", "custom_mask_type", "1") for way in ("forward", "backward")),
        *((f"_scaled_dot_product_{op}", "is_causal", "True") for op in SCALED),
    ],
)
def test_causal_attention_does_half_and_no_other_flag_does(name: str, flag: str, value: str) -> None:
    """The places are those of PyTorch's own schemas; compute_log_sumexp is true in any training."""
    torch: Any = pytest.importorskip("torch")
    arguments = getattr(torch.ops.aten, name).default._schema.arguments
    others = ["True" if str(a.type) == "bool" and a.name != flag else "" for a in arguments]
    causal = [value if a.name == flag else "" for a in arguments]
    assert _attention_flops(f"aten::{name}", causal) * 2 == _attention_flops(f"aten::{name}", others)


def test_flash_attn_s_own_ops_are_causal_by_their_own_argument() -> None:
    forward = ["", "", "", "0.", "0.125", "True", "-1", "-1", "0.", "", "False"]
    plain = [*forward[:5], "False", *forward[6:]]
    name = "flash_attn::_flash_attn_forward"
    assert _attention_flops(name, forward) * 2 == _attention_flops(name, plain)


EMPTY = ([0, 16, 8, 64], [2, 0, 8, 64], [2, 16, 8, 0])


@pytest.mark.parametrize(
    ("name", "dims", "dtype"),
    [
        *(("aten::_flash_attention_forward", [shape] * 3, HALF) for shape in EMPTY),  # a rate over no bytes
        *(("aten::mm", dims, HALF) for dims in ([], [[64, 32]], [[64, 32], [31, 16]], [[64], [64]])),
        *(("aten::mm", dims, HALF) for dims in ([["a"], ["b"]], [[0, 4], [4, 4]])),
        ("aten::mm", [[4, 4], [4, 4]], "long int"),
    ],
)
def test_empty_shapes_shapes_that_do_not_fit_and_integers_give_no_work(
    name: str, dims: list[Any], dtype: str
) -> None:
    assert find_work(name, OpArguments(dims, [dtype] * 3), 1) is None


A100 = get_device("a100-sxm-80gb")


def _place(folder: Path, dtype: str, *kernels: Event) -> RoofPoint:
    """An op of two square matrices that launches twice; a third launch comes after it."""
    dims = shapes([4096, 4096], [4096, 4096], dtype=dtype)
    op = host_event("cpu_op", "aten::mm", 0, 20, args=dims)
    trace = trace_of(folder, [op, launch(5, 3, 1), launch(12, 3, 2), launch(30, 3, 3), *kernels])
    (point,) = place_on_roofline(trace, classify(trace, load_patterns()), A100)
    return point


def test_a_kernel_belongs_to_the_op_that_launched_it(tmp_path: Path) -> None:
    kernels = [kernel("gemm", 40, 600, correlation=1), kernel("splitk", 640, 40, correlation=2)]
    point = _place(tmp_path, HALF, *kernels, kernel("relu", 700, 40, correlation=3))
    assert (point.time_ns, point.bound) == (640_000, "compute")
    assert point.achieved_flops_per_s == pytest.approx(2 * 4096**3 / 640e-6)
    assert point.lost_ns == pytest.approx(640_000 - 2 * 4096**3 / A100.peak_flops["fp16"] * 1e9)


def test_float32_faster_than_its_peak_ran_in_tf32(tmp_path: Path) -> None:
    point = _place(tmp_path, "float", kernel("gemm", 40, 1300, correlation=1))
    assert point.precision == "tf32"
    assert point.lost_ns is not None
