"""Numbers that are read together, as text: those of one range have the same decimals."""

import math

DIGITS = 3


def alike(*values: float) -> list[str]:
    """Three digits of the largest, and as many decimals of the others: 0.0469 beside 2 is 0.05."""
    largest = max(map(abs, values))
    decimals = max(DIGITS - 1 - math.floor(math.log10(largest)), 0) if largest else 0
    return [f"{value:,.{decimals}f}" for value in values]


def span(start: float, end: float) -> str:
    return " to ".join(alike(start, end))
