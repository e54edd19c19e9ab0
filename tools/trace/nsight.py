"""Reads an Nsight Systems report exported to SQLite (`nsys export --type sqlite`) into a `RankTrace`.

Table and column names: NVIDIA Nsight Systems, "SQLite Export Schema Reference". A SQLite file is a program
as much as data: only plain tables are read, and nothing but reading is allowed.
"""

import sqlite3
import time
from pathlib import Path

import numpy as np

from tools.trace.classify import is_device_work
from tools.trace.columns import NameTable, as_column
from tools.trace.record import NO_LINK, RankTrace, Spans, UnreadableTraceError, empty_spans, join_spans

_KERNEL, _RUNTIME, _RANGE = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"
_QUERIES = {
    _KERNEL: "SELECT k.start, k.end, s.value, k.streamId, k.correlationId FROM {table} k"
    " LEFT JOIN StringIds s ON s.id = k.demangledName WHERE k.deviceId = ?",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "SELECT start, end, 'Memcpy', streamId, correlationId FROM {table}"
    " WHERE deviceId = ?",
    "CUPTI_ACTIVITY_KIND_MEMSET": "SELECT start, end, 'Memset', streamId, correlationId FROM {table}"
    " WHERE deviceId = ?",
    _RUNTIME: "SELECT r.start, r.end, s.value, r.globalTid, r.correlationId FROM {table} r"
    " LEFT JOIN StringIds s ON s.id = r.nameId",
    # 59 and 60 are push/pop and start/end ranges.
    _RANGE: "SELECT e.start, e.end, COALESCE(e.text, s.value), e.globalTid, NULL FROM {table} e"
    " LEFT JOIN StringIds s ON s.id = e.textId WHERE e.eventType IN (59, 60) AND e.end IS NOT NULL",
}
_READABLE = frozenset({*_QUERIES, "StringIds", "TARGET_INFO_GPU", "sqlite_master"})
_FUNCTIONS = frozenset({"count", "coalesce"})
_ROWS = 1 << 16
_MAX_VALUE_BYTES = 1 << 20
_STEPS_PER_CHECK = 100_000
_MIN_CPU_S, _CPU_S_PER_BYTE = 5.0, 1e-6


def read_nsight(path: Path) -> RankTrace:
    """Reads one exported report; raises UnreadableTraceError with the reason."""
    try:
        # Immutable: the user's file is not touched and no journal appears beside it.
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            _restrict(connection, path.stat().st_size)
            return _read(connection, path)
        finally:
            connection.close()
    except (sqlite3.Error, ValueError, OverflowError, TypeError) as error:
        raise UnreadableTraceError(f"not an Nsight Systems SQLite export: {error}") from error


def _restrict(connection: sqlite3.Connection, size_bytes: int) -> None:
    """Against files that compute: views, triggers, virtual tables, computed columns, endless statements."""

    def authorize(
        action: int, name: str | None, function: str | None, _schema: str | None, via: str | None
    ) -> int:
        """`via` is the view or trigger that a statement works through."""
        is_allowed = via is None and (
            action == sqlite3.SQLITE_SELECT
            or (action == sqlite3.SQLITE_READ and name in _READABLE)
            or (action == sqlite3.SQLITE_FUNCTION and function in _FUNCTIONS)
        )
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    connection.executescript("PRAGMA trusted_schema=OFF; PRAGMA temp_store=MEMORY; PRAGMA cell_size_check=ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.set_authorizer(authorize)
    ends_at = time.process_time() + _MIN_CPU_S + size_bytes * _CPU_S_PER_BYTE
    connection.set_progress_handler(lambda: time.process_time() > ends_at, _STEPS_PER_CHECK)


def _read(connection: sqlite3.Connection, path: Path) -> RankTrace:
    listed = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
    tables = {name for name, sql in listed if name in _READABLE and str(sql).startswith("CREATE TABLE")}
    if not tables & {_KERNEL, _RUNTIME, _RANGE}:
        raise UnreadableTraceError("the SQLite file has no table of Nsight Systems events")
    names, devices, device_name = NameTable(), [0], None
    if _KERNEL in tables:
        counted = f"SELECT deviceId FROM {_KERNEL} GROUP BY deviceId ORDER BY COUNT(*) DESC, deviceId"
        devices = [int(device) for (device,) in connection.execute(counted)] or devices
    if "TARGET_INFO_GPU" in tables:
        found = connection.execute("SELECT name FROM TARGET_INFO_GPU WHERE id = ?", devices[:1]).fetchone()
        device_name = str(found[0]) if found else None

    def spans(table: str, *parameters: int) -> Spans:
        """The rows of one table; none when the table is missing."""
        parts = [empty_spans()]
        if table in tables:
            cursor = connection.execute(_QUERIES[table].format(table=table), parameters)
            # Not all rows at once: as Python objects they take ten times the memory.
            while rows := cursor.fetchmany(_ROWS):
                if table == _RUNTIME:
                    rows = [row for row in rows if row[2] is not None and is_device_work(row[2])]
                if rows:
                    starts, ends, texts, lanes, links = zip(*rows, strict=True)
                    start_ns, end_ns = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
                    numbers = names.number([str(text) for text in texts])
                    lane, link = as_column(lanes), as_column(links, NO_LINK)
                    parts.append(names.spans(start_ns, end_ns - start_ns, numbers, lane, link))
        return join_spans(parts)

    kernels = spans(_KERNEL, devices[0])
    copies = [spans(f"CUPTI_ACTIVITY_KIND_{kind}", devices[0]) for kind in ("MEMCPY", "MEMSET")]
    work, launches, ranges = join_spans([kernels, *copies]), spans(_RUNTIME), spans(_RANGE)
    others = ", ".join(map(str, devices[1:]))
    note = f"the report has several devices: {devices[0]} is analysed, not {others}"
    return RankTrace(
        file=path.name,
        names=list(names),
        device=work,
        is_memory=np.arange(len(work)) >= len(kernels),
        launches=launches,
        annotations=ranges,
        device_name=device_name,
        notes=(note,) if others else (),
    )
