"""NumPy's choices between values, quick for single numbers too.

A batch of plans has arrays, one plan has plain numbers, and a fact of the workload is one number for every
plan. On a number NumPy's functions take ten times as long as Python's operators.
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Number = Array | float


def number(value: float) -> Array:
    return np.float64(value)  # type: ignore[return-value]  # computes like an array, and five times as fast


ZERO, ONE = number(0.0), number(1.0)


def where(condition: Mask, chosen: Number, otherwise: Number) -> Array:
    """By row; of one condition for all rows the value itself, which may still be one for all."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, chosen, otherwise)
    return chosen if condition else otherwise


def maximum(a: Number, b: Number) -> Array:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.maximum(a, b)
    return a if a >= b else b  # type: ignore[return-value]


def minimum(a: Number, b: Number) -> Array:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.minimum(a, b)
    return a if a <= b else b  # type: ignore[return-value]


def ceil(value: Array) -> Array:
    return np.ceil(value) if value.ndim else number(math.ceil(value))


def clip(value: Number, low: Number, high: Number) -> Array:
    return minimum(maximum(value, low), high)


def is_any(condition: Mask | Array) -> bool:
    """Whether it holds for some row, or a number is not zero in some row."""
    return bool(condition.any() if condition.ndim else condition)
