"""Leaves an endpoint alone for a while after it failed several questions in a row.

A session asks half a dozen questions: without this a dead endpoint would cost each of them its full patience.
"""

from collections.abc import Callable

from graph.reasoner.faults import DENIED, QUOTA, RATE_LIMIT, SERVER, TIMEOUT, UNREACHABLE, Fault

OF_THE_ENDPOINT = frozenset({TIMEOUT, UNREACHABLE, SERVER, RATE_LIMIT, QUOTA, DENIED})
"""The next question will meet the same; other faults depend on what was asked."""


class Breaker:
    def __init__(self, clock: Callable[[], float], most_failures: int = 2, rest_s: float = 60.0) -> None:
        self._clock, self._most, self._rest_s = clock, most_failures, rest_s
        self._failures = 0
        self._until = 0.0
        self._last: Fault | None = None

    def check(self) -> None:
        """Raises the fault that the endpoint last had, while it rests."""
        left_s = self._until - self._clock()
        if self._last is not None and self._failures >= self._most and left_s > 0:
            says = f"{self._last}, {self._failures} questions in a row: not asked again for {left_s:.0f} s"
            raise Fault(self._last.kind, says)

    def note(self, fault: Fault | None) -> None:
        """How the last question ended."""
        if fault is None or fault.kind not in OF_THE_ENDPOINT:
            self._failures, self._last = 0, None
            return
        self._failures, self._last = self._failures + 1, fault
        self._until = self._clock() + self._rest_s
