"""Work of one matrix multiplication or attention op, from its input shapes.

FLOPs count a multiply-add as two. Attention forward: 4 b h s_q s_k d (two matrix products), backward 2.5
times that (five products), half of it when causal: Dao, FlashAttention-2 (arXiv 2307.08691), section 4.1.
Bytes are the least that must move: every operand and the result once.
"""

import math
from dataclasses import dataclass
from typing import Any

from tools.trace.collective_events import is_shape
from tools.trace.dtypes import find_element_bytes, find_precision
from tools.trace.op_names import ATTENTION_BACKWARD_OPS, ATTENTION_FORWARD_OPS, GEMM_OPS
from tools.trace.record import OpArguments

_BACKWARD_FACTOR = 2.5
_FIRST_OPERAND = {"aten::addmm": 1, "aten::baddbmm": 1, "aten::_addmm_activation": 1}
"""These take the bias before the two matrices."""
_CAUSAL_ARGUMENT = {
    "aten::_flash_attention_forward": 8,
    "aten::_flash_attention_backward": 11,
    "aten::_efficient_attention_forward": 9,
    "aten::_efficient_attention_backward": 14,
    "aten::_scaled_dot_product_cudnn_attention": 6,
    "aten::_scaled_dot_product_cudnn_attention_backward": 14,
    "aten::_scaled_dot_product_flash_attention_for_cpu": 4,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": 7,
    "flash_attn::_flash_attn_forward": 5,
    "flash_attn::_flash_attn_backward": 11,
}
"""Place of is_causal, or of the mask's type, in each op's schema (PyTorch's native_functions.yaml of 2.13,
flash_attn_interface.py of flash-attn 2.7)."""
_CAUSAL_VALUES = ("True", "true", "1", "2")
"""Of a mask's type: causal from the top left or from the bottom right."""


@dataclass(frozen=True)
class OpWork:
    """What one call must do."""

    shape: str
    dims: tuple[int, ...]
    """Of a product: batch, m, n, k; of attention: batch, heads, queries, keys, width."""
    precision: str
    flops: float
    moved_bytes: float


def find_work(name: str, arguments: OpArguments) -> OpWork | None:
    """None when the shapes do not tell."""
    if name in GEMM_OPS:
        return _gemm_work(arguments, _FIRST_OPERAND.get(name, 0))
    if name in ATTENTION_FORWARD_OPS:
        return _attention_work(arguments, first=0, causal=_is_causal(name, arguments))
    if name in ATTENTION_BACKWARD_OPS:
        return _attention_work(arguments, first=1, causal=_is_causal(name, arguments), backward=True)
    return None


def _gemm_work(arguments: OpArguments, first: int) -> OpWork | None:
    left, right = _dims(arguments, first), _dims(arguments, first + 1)
    kind = _type(arguments, first)
    if left is None or right is None or len(left) not in (2, 3) or len(right) != len(left) or kind is None:
        return None
    batch = left[0] if len(left) == 3 else 1
    m, k, n = left[-2], left[-1], right[-1]
    if right[-2] != k or min(batch, m, k, n) < 1:
        return None
    element_bytes = find_element_bytes(kind) or 4
    return OpWork(
        shape=(f"{batch}×" if batch > 1 else "") + f"{m}×{n}×{k}",
        dims=(batch, m, n, k),
        precision=find_precision(kind) or "fp32",
        flops=2.0 * batch * m * n * k,
        moved_bytes=float(element_bytes * batch * (m * k + k * n + m * n)),
    )


def _is_causal(name: str, arguments: OpArguments) -> bool:
    place = _CAUSAL_ARGUMENT[name]
    return place < len(arguments.concrete) and arguments.concrete[place] in _CAUSAL_VALUES


def _attention_work(
    arguments: OpArguments, first: int, causal: bool, backward: bool = False
) -> OpWork | None:
    query, key = _dims(arguments, first), _dims(arguments, first + 1)
    kind = _type(arguments, first)
    if query is None or key is None or kind is None or len(query) != 4 or len(key) != 4:
        return None
    if min(*query, *key) < 1:
        return None
    batch, heads, queries, width = query
    _, key_heads, keys, _ = key
    if heads > queries:
        # The flash kernels take [batch, sequence, heads, width]; heads outnumber tokens in neither layout.
        heads, queries, key_heads, keys = queries, heads, keys, key_heads
    factor = (_BACKWARD_FACTOR if backward else 1.0) * (0.5 if causal else 1.0)
    element_bytes = find_element_bytes(kind) or 2
    operands = 2 * math.prod(query) + 2 * math.prod(key)
    return OpWork(
        shape=f"b{batch} h{heads} q{queries} k{keys} d{width}" + (" causal" if causal else ""),
        dims=(batch, heads, queries, keys, width),
        precision=find_precision(kind) or "bf16",
        flops=4.0 * batch * heads * queries * keys * width * factor,
        moved_bytes=float(element_bytes * operands * (2 if backward else 1)),
    )


def _dims(arguments: OpArguments, position: int) -> list[int] | None:
    dims: Any = arguments.dims[position] if position < len(arguments.dims) else None
    return dims if is_shape(dims) and dims else None


def _type(arguments: OpArguments, position: int) -> str | None:
    """The dtype of one operand, when it is a floating one."""
    kind = arguments.types[position] if position < len(arguments.types) else ""
    return kind if find_precision(kind) else None
