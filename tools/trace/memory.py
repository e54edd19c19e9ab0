"""Peak and course of allocated memory, from `[memory]` events."""

import msgspec
import numpy as np

from tools.trace.record import MemoryCounter

_MAX_POINTS = 200


class MemoryProfile(msgspec.Struct, frozen=True):
    """Of one rank's accelerator, or of its host when the trace has no accelerator."""

    is_accelerator: bool
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    time_ns: list[int]
    """Since the first event; each point is the highest of its stretch."""
    allocated_bytes: list[int]


def profile_memory(counters: tuple[MemoryCounter, ...]) -> MemoryProfile | None:
    """None when the profiler did not record memory."""
    if not counters:
        return None
    counter = max(counters, key=lambda one: (one.is_accelerator, int(one.allocated_bytes.max())))
    stretches = np.array_split(np.arange(len(counter.time_ns)), min(_MAX_POINTS, len(counter.time_ns)))
    highest = [int(stretch[counter.allocated_bytes[stretch].argmax()]) for stretch in stretches]
    return MemoryProfile(
        is_accelerator=counter.is_accelerator,
        peak_allocated_bytes=int(counter.allocated_bytes.max()),
        peak_reserved_bytes=int(counter.reserved_bytes.max()),
        time_ns=(counter.time_ns[highest] - counter.time_ns[0]).tolist(),
        allocated_bytes=counter.allocated_bytes[highest].tolist(),
    )
