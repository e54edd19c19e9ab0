"""Numbers as a model should read them: short, so that it copies them whole and nobody pays for tails."""

import math
from collections.abc import Mapping

SIGNIFICANT_DIGITS = 5
"""More than any text quotes; the check of its numbers allows for the rounding."""


def rounded(data: object) -> object:
    """The same data, with every float rounded."""
    if isinstance(data, float) and math.isfinite(data):
        return float(f"{data:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(data, Mapping):
        return {name: rounded(part) for name, part in data.items()}
    if isinstance(data, list | tuple):
        return [rounded(part) for part in data]
    return data
