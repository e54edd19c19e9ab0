"""What is counted of one rank's step, and arithmetic on it. Needs no torch.

Figures are numbers by name, so that steps of fewer layers and micro-batches can be extrapolated term by
term: `flops`, `memory.<part>` in bytes, `traffic.<group>.<kind>.<messages|bytes|wire_bytes>`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Figures = Mapping[str, float]

AXES = {
    "tp": ("tp",),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp": ("dp_shard", "dp_replicate", "expert_shard", "expert_replicate"),
    "pp": ("pp",),
}
"""Groups of ranks that serve an axis of the plan."""


@dataclass(frozen=True)
class Traffic:
    """A kind of collective in one group, on one rank in one step."""

    group: str
    kind: str
    messages: float
    total_bytes: float
    wire_bytes: float


def plus(one: Figures, other: Figures, factor: float) -> Figures:
    """`one + factor * other`, where a missing figure is zero."""
    return {name: one.get(name, 0.0) + factor * other.get(name, 0.0) for name in {**one, **other}}


def along(low: Figures, high: Figures, position: float) -> Figures:
    """On the line through `low` (position 0) and `high` (position 1)."""
    return plus(low, plus(high, low, -1.0), position)


def traffic_of(figures: Figures) -> list[Traffic]:
    """In order of group and kind; without what never happened."""
    found = sorted({tuple(name.split(".")[1:3]) for name in figures if name.startswith("traffic.")})
    rows = [
        Traffic(group, kind, *(figures[f"traffic.{group}.{kind}.{what}"] for what in _COLUMNS))
        for group, kind in found
    ]
    return [row for row in rows if row.messages]


def axis_wire_bytes(figures: Figures, axis: str) -> float:
    return sum(row.wire_bytes for row in traffic_of(figures) if row.group in AXES[axis])


_COLUMNS = ("messages", "bytes", "wire_bytes")
