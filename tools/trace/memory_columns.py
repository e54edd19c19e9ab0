"""`[memory]` events gathered into one counter per device."""

from collections.abc import Sequence

import numpy as np

from tools.trace.batches import TraceEvent
from tools.trace.event_arguments import MemoryArguments, decode_arguments
from tools.trace.nanoseconds import parse_nanoseconds
from tools.trace.record import Integers, MemoryCounter

_CPU_DEVICE_TYPE = 0
"""c10::DeviceType of the host; every other number is an accelerator."""


class MemoryColumns:
    """Grows by batches; events that lack totals are left out."""

    def __init__(self) -> None:
        self._parts: list[Integers] = []

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Appends the events of one batch."""
        decoded = decode_arguments([event.args for event in events], MemoryArguments)
        rows = [(one.device_type, one.device, one.allocated, one.reserved) for one in decoded]
        told = [position for position, row in enumerate(rows) if None not in row]
        if told:
            time_ns = parse_nanoseconds([events[position].ts for position in told])
            figures = np.array([rows[position] for position in told], dtype=np.int64).T
            self._parts.append(np.vstack([time_ns, figures]))

    def finish(self) -> tuple[MemoryCounter, ...]:
        """One counter per device, accelerators first."""
        if not self._parts:
            return ()
        columns = np.concatenate(self._parts, axis=1)
        columns = columns[:, np.argsort(columns[0], kind="stable")]
        devices = sorted(set(zip(columns[1].tolist(), columns[2].tolist(), strict=True)))
        counters = [_counter(columns, kind, device) for kind, device in devices]
        return tuple(sorted(counters, key=lambda counter: not counter.is_accelerator))


def _counter(columns: Integers, kind: int, device: int) -> MemoryCounter:
    time_ns, _, _, allocated, reserved = columns[:, (columns[1] == kind) & (columns[2] == device)]
    return MemoryCounter(time_ns, allocated, reserved, is_accelerator=kind != _CPU_DEVICE_TYPE)
