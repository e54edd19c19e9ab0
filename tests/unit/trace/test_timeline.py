"""A rank's events as a timeline gets them: every event of the device once, in rows in order of time."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.trace.builders import Event, kernel, trace_of
from tools.trace.timeline import CLASS_SHIFT, MAX_DEPTH, pack

SPANS = st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 300)), min_size=1, max_size=MAX_DEPTH)


def unpack(packed: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """As timeline_data.js does."""
    (length,) = struct.unpack("<I", packed[:4])
    header, offset, rows = json.loads(packed[4 : 4 + length]), 4 + length, []
    for row in header["rows"]:
        rows.append(np.frombuffer(packed, "<u4", 3 * row["count"], offset).reshape(3, -1).astype(np.int64))
        offset += 12 * row["count"]
    assert offset == len(packed)
    return header, rows


@given(SPANS)
def test_every_event_of_the_device_is_in_one_row_under_its_name_and_class(
    tmp_path_factory: pytest.TempPathFactory, spans: list[tuple[int, int]]
) -> None:
    names = ("gemm", "ncclDevKernel_AllReduce")
    events = [kernel(names[i % 2], start, us, stream=7 + i % 2) for i, (start, us) in enumerate(spans)]
    header, rows = unpack(pack(trace_of(tmp_path_factory.mktemp("trace"), events)))
    assert all(about["lane"].startswith("stream") for about in header["rows"])
    together = np.concatenate(rows, axis=1)
    first_ns = min(start for start, _ in spans) * 1000
    drawn = {(number >> CLASS_SHIFT, header["names"][number % 2**CLASS_SHIFT]) for number in together[2]}
    assert drawn <= {(0, names[0]), (1, names[1])}
    expected = sorted((start * 1000 - first_ns, us * 1000) for start, us in spans)
    assert sorted(zip(*together[:2].tolist(), strict=True)) == expected
    assert all(np.all(np.diff(start) >= 0) for start, *_ in rows)


def test_memory_keeps_its_peak_and_times_beyond_32_bits_are_counted_in_larger_units(tmp_path: Path) -> None:
    def memory(at: float, size: int) -> Event:
        args = {"Device Type": 1, "Device Id": 0, "Total Allocated": size, "Total Reserved": size}
        return {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": at, "args": args}

    counters = [memory(1e9 + at, size << 30) for at, size in enumerate([1, 5, 2])]
    trace = trace_of(tmp_path, [kernel("gemm", 1e9, 10), kernel("gemm", 1.01e9, 10), *counters])
    header, rows = unpack(pack(trace))
    assert max(header["memory"]["gib"]) == 5.0
    assert header["unit_ns"] == 3
    assert rows[0][0].tolist() == [0, 10_000_000_000 // 3]
