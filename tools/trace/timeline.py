"""A rank's time as a strip of equal stretches, each with its shares: what the report draws."""

import msgspec
import numpy as np

from tools.trace.breakdown import Occupancy

_STRETCHES = 240
_WHOLE = 1000


class Timeline(msgspec.Struct, frozen=True):
    """Shares in thousandths, one entry a stretch; the rest of a stretch is idle."""

    start_ns: int
    end_ns: int
    compute: list[int]
    exposed_communication: list[int]
    memory: list[int]


def draw_timeline(occupancy: Occupancy, start_ns: int, end_ns: int) -> Timeline:
    """Cuts the span into stretches."""
    edges = np.linspace(0, end_ns - start_ns, _STRETCHES + 1).astype(np.int64) + start_ns
    width = np.maximum(np.diff(edges), 1)
    inside = [
        one.between(edges[:-1], edges[1:]) * _WHOLE // width
        for one in (occupancy.compute, occupancy.busy_or_talking, occupancy.busy)
    ]
    compute, talking, busy = inside
    return Timeline(
        start_ns, end_ns, compute.tolist(), (talking - compute).tolist(), (busy - talking).tolist()
    )
