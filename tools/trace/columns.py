"""Batches of decoded events gathered into columns, and the check of times that every reader makes."""

from collections.abc import Sequence

import numpy as np

from tools.trace.batches import TraceEvent
from tools.trace.errors import UnreadableTraceError
from tools.trace.nanoseconds import parse_nanoseconds
from tools.trace.record import NO_LINK, Integers, Spans, empty_spans, join_spans

_LONGEST_NS = 10**16
"""116 days. No profile lasts so long, and an end of every start that can be parsed still fits into int64."""


def check_times(start_ns: Integers, duration_ns: Integers, names: Sequence[str]) -> None:
    """Raises UnreadableTraceError where arithmetic on the times would go wrong."""
    for what, wrong, how in (
        ("duration", duration_ns < 0, "negative"),
        ("duration", duration_ns > _LONGEST_NS, "out of range"),
        ("start", start_ns < -_LONGEST_NS, "out of range"),
    ):
        if wrong.any():
            raise UnreadableTraceError(f"the {what} of {names[int(wrong.argmax())][:60]!r} is {how}")


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
        names = [event.name for event in events]
        check_times(start_ns, duration_ns, names)
        link = np.full(len(events), NO_LINK) if links is None else links
        numbers = self._names.number(names)
        self._parts.append(Spans(start_ns, start_ns + duration_ns, numbers, lanes, link))
        self.length += len(events)

    def finish(self) -> Spans:
        """All events added, in file order."""
        if not self._parts:
            return empty_spans()
        return join_spans(self._parts)
