"""Requests a minute, for each key or address: a bucket that fills steadily and empties by one a request.

Each process counts for itself: behind N replicas a caller gets up to N times as much.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

MOST_CALLERS = 10_000
BURST_S = 10.0
"""What may come at once: the requests of so many seconds."""


class RateLimit:
    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_minute / 60
        self._burst = max(1.0, self._per_s * BURST_S)
        self._clock, self._lock = clock, Lock()
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str) -> int:
        """Takes one; 0 where that is allowed, else the whole seconds until it will be."""
        now = self._clock()
        with self._lock:
            left, before = self._buckets.pop(caller, (self._burst, now))
            left = min(self._burst, left + (now - before) * self._per_s)
            allowed = left >= 1
            self._buckets[caller] = (left - allowed, now)
            if len(self._buckets) > MOST_CALLERS:
                self._buckets.popitem(last=False)
        return 0 if allowed else math.ceil((1 - left) / self._per_s)
