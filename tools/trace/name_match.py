"""A test of names applied to columns of events, once per distinct name."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tools.trace.record import Spans


def match_names(names: list[str], spans: Spans, test: Callable[[str], object]) -> NDArray[np.bool_]:
    """Which events have a name that passes the test."""
    verdict = np.zeros(len(names), dtype=np.bool_)
    used = np.flatnonzero(np.bincount(spans.name, minlength=len(names)))
    verdict[used] = [bool(test(names[number])) for number in used]
    return verdict[spans.name]
