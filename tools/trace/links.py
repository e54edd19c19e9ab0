"""Ties between events: device work to its launch, a launch to the host span around it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tools.trace.record import NO_LINK, Integers, Spans


@dataclass(frozen=True)
class FoundLaunches:
    """The launch of each event; only entries with `found` mean anything."""

    found: NDArray[np.bool_]
    start_ns: Integers
    end_ns: Integers
    lane: Integers
    """The host thread."""


def find_launches(link: Integers, launches: Spans) -> FoundLaunches:
    """Looks each correlation up among the launches."""
    if not len(launches):
        nothing = np.zeros(len(link), dtype=np.int64)
        return FoundLaunches(nothing.astype(np.bool_), nothing, nothing, nothing)
    order = np.argsort(launches.link, kind="stable")
    links = launches.link[order]
    index = np.minimum(np.searchsorted(links, link), len(links) - 1)
    found = (links[index] == link) & (link != NO_LINK)
    chosen = order[index]
    return FoundLaunches(found, launches.start_ns[chosen], launches.end_ns[chosen], launches.lane[chosen])


def find_enclosing(spans: Spans, lane: Integers, time_ns: Integers) -> Integers:
    """Position of the span on that lane that is open at that time; -1 where there is none.

    Of nested spans the one that started last is found; spans here do not nest as a rule.
    """
    result = np.full(len(time_ns), -1, dtype=np.int64)
    for one in np.unique(lane):
        here = np.flatnonzero(spans.lane == one)
        asked = np.flatnonzero(lane == one)
        if not len(here):
            continue
        here = here[np.argsort(spans.start_ns[here], kind="stable")]
        index = np.searchsorted(spans.start_ns[here], time_ns[asked], side="right") - 1
        candidate = here[np.maximum(index, 0)]
        inside = (index >= 0) & (spans.end_ns[candidate] >= time_ns[asked])
        result[asked] = np.where(inside, candidate, -1)
    return result
