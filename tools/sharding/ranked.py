"""Plans with their time and memory: the fastest of them, and the front of time against memory."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.cost.inputs import Array
from tools.sharding.space import Mask, Rows, Table, joined, where


@dataclass(frozen=True)
class Ranked:
    """Plans that fit, with their time and memory."""

    plans: Table
    step_time_s: Array
    memory_bytes: Array

    def take(self, rows: Mask | Rows) -> "Ranked":
        return Ranked(where(self.plans, rows), self.step_time_s[rows], self.memory_bytes[rows])


NOTHING = Ranked({}, np.zeros(0), np.zeros(0))


def together(parts: Sequence[Ranked]) -> Ranked:
    filled = [part for part in parts if part.plans]
    if not filled:
        return NOTHING
    return Ranked(
        joined([part.plans for part in filled]),
        np.concatenate([part.step_time_s for part in filled]),
        np.concatenate([part.memory_bytes for part in filled]),
    )


def fastest_first(ranked: Ranked) -> Ranked:
    """Of plans as fast as each other the smallest first."""
    return ranked.take(np.lexsort((ranked.memory_bytes, ranked.step_time_s))) if ranked.plans else ranked


def best_of(ranked: Ranked, most: int) -> Ranked:
    """The fastest, and every plan on the front of time against memory; fastest first."""
    ordered = fastest_first(ranked)
    keep = on_front(ordered.memory_bytes)
    keep[:most] = True
    return ordered.take(keep) if ordered.plans else ordered


def front_of(ranked: Ranked) -> Ranked:
    """Plans that need less memory than every faster one; fastest first."""
    ordered = fastest_first(ranked)
    return ordered.take(on_front(ordered.memory_bytes)) if ordered.plans else ordered


def on_front(memory_of_faster_first: Array) -> Mask:
    """Which plans, sorted by time, need less memory than every faster one."""
    before = np.concatenate([[np.inf], memory_of_faster_first])[: len(memory_of_faster_first)]
    return np.asarray(memory_of_faster_first < np.minimum.accumulate(before))


def front_bytes(front: Ranked, step_time_s: Array) -> Array:
    """The least memory that plans of the front need that are as fast; infinite where none is."""
    behind = np.searchsorted(front.step_time_s, step_time_s, side="right")
    return np.concatenate([[np.inf], front.memory_bytes])[behind]
