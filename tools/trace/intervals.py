"""Exact arithmetic on sets of time intervals, in integer nanoseconds."""

from dataclasses import dataclass

import numpy as np

from tools.trace.record import Integers


@dataclass(frozen=True)
class Coverage:
    """A union of intervals as disjoint, ordered segments."""

    start_ns: Integers
    end_ns: Integers
    before_ns: Integers
    """Time covered by all earlier segments."""

    @property
    def total_ns(self) -> int:
        return int((self.end_ns - self.start_ns).sum())

    def until(self, time_ns: Integers | int) -> Integers:
        """Time covered before each moment."""
        moments = np.atleast_1d(np.asarray(time_ns, dtype=np.int64))
        if not len(self.start_ns):
            return np.zeros(len(moments), dtype=np.int64)
        index = np.searchsorted(self.start_ns, moments, side="right") - 1
        inside = np.minimum(moments, self.end_ns[index]) - self.start_ns[index]
        return np.where(index < 0, 0, self.before_ns[index] + inside)

    def between(self, start_ns: Integers | int, end_ns: Integers | int) -> Integers:
        """Time covered inside each window."""
        return self.until(end_ns) - self.until(start_ns)

    def gaps(self) -> tuple[Integers, Integers]:
        """Starts and ends of what lies uncovered between segments."""
        return self.end_ns[:-1], self.start_ns[1:]


def cover(start_ns: Integers, end_ns: Integers) -> Coverage:
    """The union of the given intervals; touching ones join."""
    order = np.argsort(start_ns, kind="stable")
    start_ns, end_ns = start_ns[order], end_ns[order]
    if not len(start_ns):
        return Coverage(start_ns, end_ns, start_ns)
    reached = np.maximum.accumulate(end_ns)
    opens = np.append(True, start_ns[1:] > reached[:-1])
    closes = np.append(opens[1:], True)
    starts, ends = start_ns[opens], reached[closes]
    lengths = ends - starts
    return Coverage(starts, ends, np.cumsum(lengths) - lengths)


def join(*coverages: Coverage) -> Coverage:
    """The union of several coverages."""
    return cover(
        np.concatenate([one.start_ns for one in coverages]), np.concatenate([one.end_ns for one in coverages])
    )
