"""Checks of single values: is this a number, whole where it must be, and above zero?

Shared by the data files and the overrides; each turns the complaint into its own kind of error.
"""

import math
from typing import TypeGuard

from tools.hardware.figures import Figure


class ValueFault(Exception):
    """What a value must be and is not; never leaves this package."""


def check_figure(figure: Figure, value: object) -> float:
    """The value, once it is known to be one that this figure can have."""
    if not figure.integral:
        return check_amount(value, figure.unit)
    # JSON has one kind of number: 8.0 is a count too. An infinity leaves NaN as its remainder.
    if _is_number(value) and figure.lowest <= value <= figure.highest and value % 1 == 0:
        return value
    limits = f"from {figure.lowest:g} to {figure.highest:g}"
    if math.isinf(figure.highest):
        limits = f"of at least {figure.lowest:g}"
    raise ValueFault(f"must be a whole number of {figure.unit} {limits}")


def check_amount(value: object, unit: str) -> float:
    """The value, once it is known to be finite and above zero."""
    if _is_number(value) and 0 < value < math.inf:
        return value
    raise ValueFault(f"must be a finite number of {unit} above 0")


def _is_number(value: object) -> TypeGuard[float]:
    # bool is an int to Python, and `true` GiB of memory is a mistake.
    return isinstance(value, int | float) and not isinstance(value, bool)
