"""One rank's events for a timeline that zooms: rows of streams and threads, packed as 32-bit columns.

Little-endian: the length of a JSON header, the header (`TimelineHeader`, padded to four bytes with spaces),
then for every row three columns of `count` numbers: start, duration, and name with the class in the highest
four bits. Times count `unit_ns` since `start_us`.
"""

import struct

import msgspec
import numpy as np
from numpy.typing import NDArray

from tools.trace.classify import COMMUNICATION, classify, load_patterns
from tools.trace.rank_profile import GIB, main_counter
from tools.trace.record import Integers, MemoryCounter, RankTrace, Spans

MAX_LANES = 500
MAX_DEPTH = 24
"""Deeper host calls are left out: a reader needs none of them, and Python recursion nests thousands."""
ROUNDING_NS = 1000
"""Profilers round to microseconds: what follows may seem to begin before the end."""
MAX_NAME = 400
MAX_MEMORY_POINTS = 4000
LARGEST = 2**32 - 1
CLASS_SHIFT = 28
HOST, MARK = 3, 4
"""Beside the classes of work in classify.py."""


class Row(msgspec.Struct, frozen=True):
    """Events that do not overlap: one depth of a stream or thread."""

    lane: str
    depth: int
    count: int


class MemoryLine(msgspec.Struct, frozen=True):
    at: list[int]
    gib: list[float]


class TimelineHeader(msgspec.Struct, frozen=True):
    start_us: float
    unit_ns: int
    span: int
    events: int
    names: list[str]
    rows: list[Row]
    memory: MemoryLine | None


def pack(trace: RankTrace) -> bytes:
    """Streams of the device, marks of steps, then threads of the host; of each kind the busiest."""
    work = classify(trace, load_patterns())
    of_device = np.zeros(len(trace.device), dtype=np.int64)
    of_marks = np.full(len(trace.annotations), MARK)
    if work.basis == "device":
        of_device[work.origin] = work.work_class
    else:
        of_marks[work.origin[work.work_class == COMMUNICATION]] = COMMUNICATION
    lanes: list[tuple[str, Spans, Integers]] = []
    for kind, spans, work_class in (
        ("stream", trace.device, of_device),
        ("marks", trace.annotations, of_marks),
        ("thread", trace.host_ops, np.full(len(trace.host_ops), HOST)),
        ("launches", trace.launches, np.full(len(trace.launches), HOST)),
    ):
        numbers, counts = np.unique(spans.lane, return_counts=True)
        for number in numbers[np.argsort(-counts, kind="stable")][:MAX_LANES]:
            chosen = np.flatnonzero(spans.lane == number)
            lanes.append((f"{kind} {number}", spans.take(chosen), work_class[chosen]))
    start_ns = min((int(spans.start_ns.min()) for _, spans, _ in lanes), default=0)
    end_ns = max((int(spans.end_ns.max()) for _, spans, _ in lanes), default=1)
    unit_ns = (end_ns - start_ns) // LARGEST + 1
    rows: list[Row] = []
    columns: list[NDArray[np.uint32]] = []
    for label, spans, work_class in lanes:
        for depth, chosen in _by_depth(spans):
            row = spans.take(chosen)
            rows.append(Row(label, depth, len(row)))
            name = row.name | work_class[chosen] << CLASS_SHIFT
            starts, lengths = (row.start_ns - start_ns) // unit_ns, row.duration_ns // unit_ns
            columns += [column.astype(np.uint32) for column in (starts, lengths, name)]
    header = TimelineHeader(
        start_us=start_ns / 1000,
        unit_ns=unit_ns,
        span=(end_ns - start_ns) // unit_ns,
        events=sum(row.count for row in rows),
        names=[name[:MAX_NAME] for name in trace.names],
        rows=rows,
        memory=_memory(trace.memory, start_ns, unit_ns),
    )
    return framed(header, *(column.tobytes() for column in columns))


def framed(header: msgspec.Struct, *columns: bytes) -> bytes:
    """After the header's length and the header, padded to four bytes."""
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 4)
    return b"".join([struct.pack("<I", len(text)), text, *columns])


def _by_depth(spans: Spans) -> list[tuple[int, Integers]]:
    """Rows of the lane by how many spans are open where each begins."""
    order = np.lexsort((-spans.end_ns, spans.start_ns))
    ends_ns = spans.end_ns - np.minimum(ROUNDING_NS, spans.duration_ns // 2)
    ended = np.searchsorted(np.sort(ends_ns), spans.start_ns[order], side="right")
    depth = np.maximum(np.arange(len(spans)) - ended, 0)
    deepest = min(int(depth.max(initial=0)), MAX_DEPTH - 1)
    return [(level, rows) for level in range(deepest + 1) if len(rows := order[depth == level])]


def _memory(counters: tuple[MemoryCounter, ...], start_ns: int, unit_ns: int) -> MemoryLine | None:
    """The highest of each stretch, so that no peak is lost."""
    if not counters:
        return None
    counter = main_counter(counters)
    count = len(counter.time_ns)
    starts = np.unique(np.linspace(0, count, min(count, MAX_MEMORY_POINTS), endpoint=False).astype(np.int64))
    at = np.clip((counter.time_ns[starts] - start_ns) // unit_ns, 0, LARGEST)
    peaks = np.maximum.reduceat(counter.allocated_bytes, starts)
    return MemoryLine(at.tolist(), np.round(peaks / GIB, 4).tolist())
