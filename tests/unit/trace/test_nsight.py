"""Nsight Systems exports, in the documented schema."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tools.trace.breakdown import occupy
from tools.trace.classify import classify, load_patterns
from tools.trace.nsight import read_nsight
from tools.trace.record import UnreadableTraceError

_SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT,
  demangledName INT, shortName INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, streamId INT, correlationId INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, textId INT, globalTid INT);
CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT);
INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_AllReduce'), (3, 'cudaLaunchKernel');
INSERT INTO StringIds VALUES (4, 'load_batch');
INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100 80GB HBM3');
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 10, 5, 1, 3), (400, 450, 5, 2, 3);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (100, 300, 0, 7, 1, 1, 1), (500, 800, 0, 9, 2, 2, 2);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (800, 850, 0, 7, 0);
INSERT INTO NVTX_EVENTS VALUES (0, 90, 59, NULL, 4, 5), (5, NULL, 34, 'mark', NULL, 5);
"""


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "report.sqlite"
    _execute(path, _SCHEMA)
    return path


def _execute(path: Path, statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(statements)


def test_an_export_gives_the_same_terms_as_a_trace_and_is_not_touched(report: Path) -> None:
    before = report.read_bytes()
    trace = read_nsight(report)
    assert report.read_bytes() == before
    assert [path.name for path in report.parent.iterdir()] == ["report.sqlite"]
    terms = occupy(classify(trace, load_patterns()), trace.launches).whole()
    assert (terms.compute_ns, terms.communication_ns, terms.memory_ns) == (200, 300, 50)
    assert (terms.idle_host_ns, terms.idle_waiting_ns) == (150, 50)
    assert trace.device_name == "NVIDIA H100 80GB HBM3"
    assert [trace.names[number] for number in trace.annotations.name] == ["load_batch"]


def test_the_busiest_device_is_analysed_unless_an_event_ends_before_it_starts(
    report: Path,
) -> None:
    _execute(report, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0, 9, 1, 7, 9, 1, 1)")
    trace = read_nsight(report)
    assert len(trace.device) == 3
    assert "several devices" in trace.notes[0]
    _execute(report, "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (50, 9, 0, 7, 9, 1, 1)")
    with pytest.raises(UnreadableTraceError, match="'gemm' is negative"):
        read_nsight(report)


@pytest.mark.parametrize("content", [b"", b"not a database at all", b"SQLite format 3\x00" + b"\xff" * 500])
def test_what_is_not_an_export_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    with pytest.raises(UnreadableTraceError):
        read_nsight(path)
