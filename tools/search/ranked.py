"""Plans with their time and memory: the fastest of them, the front of time against memory, and all of them as
bytes, kept with a session and read by the page that explores them.

The bytes are gzip of: the length of a JSON header (uint32, little-endian), the header padded with spaces to a
multiple of four, then one array of four-byte numbers per column, little-endian, in the order of the header.
Plans are sorted by time, so that neighbours are alike and compress well.
"""

import gzip
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tools.physics.inputs import Array
from tools.scenario import SEARCHED_FIELDS, PlanColumns
from tools.scenario.columns import CHOICES, BoolArray, RowIndex

SAMPLED = 64
MAX_EXPLORED = 200_000
"""Timed plans that are handed on for people to look at."""
TIME, MEMORY = "step_time_s", "memory_bytes"
COMPRESSION = 5


@dataclass(frozen=True)
class Ranked:
    """Plans that fit, with their time and memory."""

    plans: PlanColumns
    step_time_s: Array
    memory_bytes: Array

    def take(self, rows: RowIndex) -> "Ranked":
        return Ranked(self.plans.take(rows), self.step_time_s[rows], self.memory_bytes[rows])


NOTHING = Ranked(PlanColumns(), np.zeros(0), np.zeros(0))


def together(parts: Sequence[Ranked]) -> Ranked:
    filled = [part for part in parts if part.plans]
    if not filled:
        return NOTHING
    return Ranked(
        PlanColumns.joined([part.plans for part in filled]),
        np.concatenate([part.step_time_s for part in filled]),
        np.concatenate([part.memory_bytes for part in filled]),
    )


def fastest_first(ranked: Ranked) -> Ranked:
    """Among equally fast plans the smallest comes first."""
    return ranked.take(np.lexsort((ranked.memory_bytes, ranked.step_time_s))) if ranked.plans else ranked


def best_of(ranked: Ranked, limit: int) -> Ranked:
    """The fastest, and every plan on the front of time against memory; fastest first."""
    times, memory = ranked.step_time_s, ranked.memory_bytes
    if len(times) > 2 * limit:  # sorting all of them would take most of the search's time
        is_fast = times <= np.partition(times, limit - 1)[limit - 1]
        ranked = ranked.take(is_fast | (memory < memory[is_fast].min()))
    ordered = fastest_first(ranked)
    keep = on_front(ordered.memory_bytes)
    keep[:limit] = True
    return ordered.take(keep) if ordered.plans else ordered


def front_of(ranked: Ranked) -> Ranked:
    """Plans that need less memory than every faster one; fastest first."""
    if len(ranked.step_time_s) > 64 * SAMPLED:  # most need more than one of a few that are as fast
        some = front_of(ranked.take(np.arange(0, len(ranked.step_time_s), SAMPLED)))
        ranked = ranked.take(ranked.memory_bytes <= front_bytes(some, ranked.step_time_s))
    ordered = fastest_first(ranked)
    return ordered.take(on_front(ordered.memory_bytes)) if ordered.plans else ordered


def on_front(memory_of_faster_first: Array) -> BoolArray:
    """Which plans, sorted by time, need less memory than every faster one."""
    before = np.concatenate([[np.inf], memory_of_faster_first])[: len(memory_of_faster_first)]
    return np.asarray(memory_of_faster_first < np.minimum.accumulate(before))


def front_bytes(front: Ranked, step_time_s: Array) -> Array:
    """The least memory that plans of the front need that are as fast; infinite if none is."""
    behind = np.searchsorted(front.step_time_s, step_time_s, side="right")
    return np.concatenate([[np.inf], front.memory_bytes])[behind]


class BestSoFar:
    """The best plans so far; what cannot come among them is neither written down nor sorted."""

    def __init__(self, limit: int, limit_bytes: float) -> None:
        self.limit, self.limit_bytes = limit, limit_bytes
        self.kept = self.front = self._kept_front = NOTHING
        self.timed = 0
        self._explored: list[Ranked] = []
        self._last_explored_s = np.inf

    def is_open(self, min_s: Array, min_bytes: Array) -> BoolArray:
        """Which bounds leave room to fit, and to come among the plans kept or onto the front."""
        gains = (min_s <= self._last_kept_s) | (min_bytes < front_bytes(self.front, min_s))
        return np.asarray(gains & (min_bytes <= self.limit_bytes))

    def wants(self, step_time_s: Array, memory_bytes: Array) -> BoolArray:
        """Which plans may be kept or shown."""
        is_fast = step_time_s <= max(self._last_kept_s, self._last_explored_s)
        gains = memory_bytes < front_bytes(self._kept_front, step_time_s)
        return np.asarray(is_fast | gains | (memory_bytes < front_bytes(self.front, step_time_s)))

    def add(self, ranked: Ranked, every: Ranked) -> None:
        """Plans that are wanted: each with the recomputation that suits it, and with every one."""
        gains = ranked.memory_bytes < front_bytes(self._kept_front, ranked.step_time_s)
        gaining = ranked.take((ranked.step_time_s <= self._last_kept_s) | gains)
        self.kept = best_of(together([self.kept, gaining]), self.limit)
        self._kept_front = front_of(self.kept)
        needs_less = every.memory_bytes < front_bytes(self.front, every.step_time_s)
        self.front = front_of(together([self.front, every.take(needs_less)]))
        self._explored.append(every)
        if sum(len(part.step_time_s) for part in self._explored) > 2 * MAX_EXPLORED:
            self._explored = [self.explored]
            self._last_explored_s = float(self._explored[0].step_time_s[MAX_EXPLORED - 1])

    @property
    def explored(self) -> Ranked:
        return best_of(together(self._explored), MAX_EXPLORED)

    @property
    def _last_kept_s(self) -> float:
        times = self.kept.step_time_s
        return float(times[self.limit - 1]) if len(times) >= self.limit else np.inf


def pack(plans: Ranked) -> bytes:
    count = len(plans.step_time_s)
    figures = {TIME: plans.step_time_s, MEMORY: plans.memory_bytes}
    columns = [{"name": name, "type": "float32", "choices": None} for name in figures] + [
        {"name": name, "type": "int32", "choices": CHOICES.get(name)} for name in SEARCHED_FIELDS
    ]
    header = json.dumps({"count": count, "columns": columns}, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 4)
    arrays = [column.astype("<f4").tobytes() for column in figures.values()]
    if count:
        arrays += [plans.plans[name].astype("<i4").tobytes() for name in SEARCHED_FIELDS]
    body = b"".join([struct.pack("<I", len(header)), header, *arrays])
    return gzip.compress(body, COMPRESSION, mtime=0)


def unpack(packed: bytes) -> Ranked:
    """Times and memory in the precision that they were packed with."""
    body = gzip.decompress(packed)
    (length,) = struct.unpack_from("<I", body)
    header = json.loads(body[4 : 4 + length])
    count, start = header["count"], 4 + length
    columns = {}
    for column in header["columns"] if count else ():
        kind = "<f4" if column["type"] == "float32" else "<i4"
        columns[column["name"]] = np.frombuffer(body, kind, count, start)
        start += 4 * count
    empty = np.zeros(0, np.float32)
    return Ranked(
        PlanColumns({name: columns[name].astype(np.int64) for name in SEARCHED_FIELDS if name in columns}),
        columns.get(TIME, empty).astype(np.float64),
        columns.get(MEMORY, empty).astype(np.float64),
    )
