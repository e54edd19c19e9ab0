"""Element sizes and precisions by the names that profilers use."""

import re
from functools import cache

_BYTES_BY_PATTERN = (
    (re.compile(r"float8|fp8|e4m3|e5m2|int8|uint8|char|byte|bool|\bu?i8\b|_[iu]8_", re.I), 1),
    (re.compile(r"bfloat16|bf16|half|float16|fp16|f16|int16|short", re.I), 2),
    (re.compile(r"double|float64|f64|int64|\blong|uint64|_[iu]64_", re.I), 8),
    (re.compile(r"float|fp32|f32|\bint|uint32|_[iu]32_", re.I), 4),
)

_PRECISION_BY_PATTERN = (
    (re.compile(r"float8|fp8|e4m3|e5m2", re.I), "fp8"),
    (re.compile(r"bfloat16|bf16", re.I), "bf16"),
    (re.compile(r"half|float16|fp16", re.I), "fp16"),
    (re.compile(r"^float$|float32|fp32", re.I), "fp32"),
)


@cache
def find_element_bytes(name: str) -> int | None:
    """Bytes of one element, from a dtype or from a kernel name that contains one."""
    return next((size for pattern, size in _BYTES_BY_PATTERN if pattern.search(name)), None)


@cache
def find_precision(name: str) -> str | None:
    """The contract's precision name of a floating dtype."""
    return next((precision for pattern, precision in _PRECISION_BY_PATTERN if pattern.search(name)), None)
