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
    """Grows by batches; a batch with events that lack totals is left out."""

    def __init__(self) -> None:
        self._parts: list[Integers] = []

    def add(self, events: Sequence[TraceEvent]) -> None:
        """Appends the events of one batch."""
        if not events:
            return
        decoded = decode_arguments([event.args for event in events], MemoryArguments)
        columns = (
            [one.device_type for one in decoded],
            [one.device for one in decoded],
            [one.allocated for one in decoded],
            [one.reserved for one in decoded],
        )
        if not any(None in column for column in columns):
            time_ns = parse_nanoseconds([event.ts for event in events])
            self._parts.append(np.stack([time_ns, *(np.array(one, dtype=np.int64) for one in columns)]))

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
