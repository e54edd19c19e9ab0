"""A rank's events as a timeline gets them: every event of the device once, in rows that do not overlap."""

import gzip
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.trace.folder import read_trace
from tools.trace.record import Spans
from tools.trace.timeline import CLASS_SHIFT, _by_depth, pack

REPO = Path(__file__).resolve().parents[3]
REAL = REPO.parent / "shared" / "traces"
NAME_MASK = 2**CLASS_SHIFT - 1


def unpack(packed: bytes) -> tuple[dict[str, Any], list[np.ndarray]]:
    """As timeline_data.js does."""
    (length,) = struct.unpack("<I", packed[:4])
    header, offset, rows = json.loads(packed[4 : 4 + length]), 4 + length, []
    for row in header["rows"]:
        rows.append(np.frombuffer(packed, "<u4", 3 * row["count"], offset).reshape(3, -1))
        offset += 12 * row["count"]
    assert offset == len(packed)
    return header, rows


@pytest.mark.parametrize("name", ["megatron_tp8/rank6.json.gz", "single/b200_eager.json.gz"])
def test_the_streams_of_a_real_trace_hold_every_device_event_once(name: str) -> None:
    if not (REAL / name).exists():
        pytest.skip("the shared traces are not on this machine")
    trace = read_trace(REAL / name)
    header, rows = unpack(pack(trace))
    streams = [
        row for about, row in zip(header["rows"], rows, strict=True) if about["lane"].startswith("stream")
    ]
    together = np.concatenate(streams, axis=1)
    assert together.shape[1] == len(trace.device)
    assert int(together[1].astype(np.int64).sum()) * header["unit_ns"] == int(trace.device.duration_ns.sum())
    drawn = sorted(header["names"][number & NAME_MASK] for number in together[2])
    assert drawn == sorted(trace.names[number][:400] for number in trace.device.name)
    communicates = {header["names"][n & NAME_MASK] for n in together[2] if n >> CLASS_SHIFT == 1}
    assert all("nccl" in kernel.lower() for kernel in communicates)


def test_memory_keeps_its_peak_and_times_beyond_32_bits_are_counted_in_larger_units(tmp_path: Path) -> None:
    span = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "dur": 10}
    events = [
        {**span, "ts": 1_000_000_000.0, "args": {"stream": 7}},
        {**span, "ts": 1_010_000_000.0, "args": {"stream": 7}},
        *(
            {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "pid": 0, "tid": 0, "ts": 1e9 + at,
             "args": {"Device Type": 1, "Device Id": 0, "Total Allocated": size, "Total Reserved": size}}
            for at, size in enumerate([1 << 30, 5 << 30, 2 << 30])
        ),
    ]  # fmt: skip
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    header, rows = unpack(pack(read_trace(path)))
    assert max(header["memory"]["gib"]) == 5.0
    assert header["unit_ns"] == 3
    assert rows[0][0].tolist() == [0, 10_000_000_000 // 3]


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**5)), min_size=1, max_size=60))
def test_every_span_is_in_one_row(spans: list[tuple[int, int]]) -> None:
    start = np.array([begin for begin, _ in spans])
    zero = np.zeros(len(spans), dtype=np.int64)
    lane = Spans(start, start + np.array([length for _, length in spans]), zero, zero, zero)
    rows = _by_depth(lane)
    assert sorted(np.concatenate([row for _, row in rows]).tolist()) == list(range(len(spans)))
    assert all(np.all(np.diff(start[row]) >= 0) for _, row in rows)
