"""Batches of decoded events gathered into columns."""

from collections.abc import Sequence

import numpy as np

from tools.trace.batches import TraceEvent
from tools.trace.errors import UnreadableTraceError
from tools.trace.nanoseconds import parse_nanoseconds
from tools.trace.record import NO_LINK, Integers, Spans, empty_spans, join_spans


class NameTable(dict[str, int]):
    """Numbers names in the order they are first seen."""

    def __missing__(self, name: str) -> int:
        number = len(self)
        self[name] = number
        return number

    def number(self, names: Sequence[str]) -> Integers:
        """The number of each name."""
        return np.array([self[name] for name in names], dtype=np.int64)


class SpanColumns:
    """Grows by batches, ends as one `Spans`."""

    def __init__(self, names: NameTable) -> None:
        self.length = 0
        self._names = names
        self._parts: list[Spans] = []

    def add(self, events: Sequence[TraceEvent], lanes: Integers, links: Integers | None = None) -> None:
        """Appends events; `links` default to none."""
        # One call for both: most batches are short, and a call costs more than its numbers.
        times_ns = parse_nanoseconds([event.ts for event in events] + [event.dur for event in events])
        start_ns, duration_ns = times_ns[: len(events)], times_ns[len(events) :]
        if len(duration_ns) and duration_ns.min() < 0:
            name = events[int(duration_ns.argmin())].name[:60]
            raise UnreadableTraceError(f"the duration of {name!r} is negative")
        link = np.full(len(events), NO_LINK) if links is None else links
        numbers = self._names.number([event.name for event in events])
        self._parts.append(Spans(start_ns, start_ns + duration_ns, numbers, lanes, link))
        self.length += len(events)

    def finish(self) -> Spans:
        """All events added, in file order."""
        if not self._parts:
            return empty_spans()
        return join_spans(self._parts)
