"""Reads an Nsight Systems report exported to SQLite (`nsys export --type sqlite`) into a `RankTrace`.

Table and column names: NVIDIA Nsight Systems, "SQLite Export Schema Reference". A SQLite file is a program
as much as data: only plain tables are read, and nothing but reading is allowed.
"""

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tools.trace.classify import is_device_work
from tools.trace.columns import NameTable, check_times
from tools.trace.record import (
    NO_LINK,
    DistributedInfo,
    RankTrace,
    Spans,
    UnreadableTraceError,
    empty_spans,
    join_spans,
)

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
_Row = tuple[int, int, str | None, int | None, int | None]
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
            return _Report(connection).read(path)
        finally:
            connection.close()
    except (sqlite3.Error, ValueError, OverflowError, TypeError) as error:
        raise UnreadableTraceError(f"not an Nsight Systems SQLite export: {error}") from error


def _restrict(connection: sqlite3.Connection, size_bytes: int) -> None:
    """Against files that compute: views, triggers, virtual tables, computed columns, endless statements."""
    connection.executescript("PRAGMA trusted_schema=OFF; PRAGMA temp_store=MEMORY; PRAGMA cell_size_check=ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_VALUE_BYTES)
    connection.set_authorizer(_authorize)
    ends_at = time.process_time() + _MIN_CPU_S + size_bytes * _CPU_S_PER_BYTE
    connection.set_progress_handler(lambda: time.process_time() > ends_at, _STEPS_PER_CHECK)


def _authorize(
    action: int, name: str | None, _column: str | None, _schema: str | None, via: str | None
) -> int:
    """`via` is the view or trigger that a statement works through."""
    if action == sqlite3.SQLITE_SELECT and via is None:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and via is None and name in _READABLE:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and via is None and _column in _FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


class _Report:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.names = NameTable()
        listed = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'")
        self.tables = {
            name for name, sql in listed if name in _READABLE and str(sql).startswith("CREATE TABLE")
        }

    def read(self, path: Path) -> RankTrace:
        if not self.tables & {_KERNEL, _RUNTIME, _RANGE}:
            raise UnreadableTraceError("the SQLite file has no table of Nsight Systems events")
        device, notes = self._choose_device()
        kernels = self._spans(_KERNEL, device)
        copies = [self._spans(f"CUPTI_ACTIVITY_KIND_{kind}", device) for kind in ("MEMCPY", "MEMSET")]
        work = join_spans([kernels, *copies])
        launches, ranges = self._spans(_RUNTIME), self._spans(_RANGE)
        return RankTrace(
            file=path.name,
            names=list(self.names),
            device=work,
            is_memory=np.arange(len(work)) >= len(kernels),
            device_collectives={},
            launches=launches,
            host_ops=empty_spans(),
            host_op_arguments={},
            host_op_collectives={},
            annotations=ranges,
            annotation_arguments={},
            device_annotations=empty_spans(),
            memory=(),
            distributed=DistributedInfo(),
            device_name=self._find_device_name(device),
            notes=notes,
        )

    def _choose_device(self) -> tuple[int, tuple[str, ...]]:
        if _KERNEL not in self.tables:
            return 0, ()
        counted = f"SELECT deviceId FROM {_KERNEL} GROUP BY deviceId ORDER BY COUNT(*) DESC, deviceId"
        devices = [int(device) for (device,) in self.connection.execute(counted)]
        if len(devices) < 2:
            return (devices or [0])[0], ()
        others = ", ".join(str(device) for device in devices[1:])
        return devices[0], (f"the report has several devices: {devices[0]} is analysed, not {others}",)

    def _spans(self, table: str, *parameters: int) -> Spans:
        """The rows of one table; none when the table is missing."""
        if table not in self.tables:
            return empty_spans()
        parts = [self._part(rows) for rows in self._batches(table, parameters)]
        return join_spans(parts) if parts else empty_spans()

    def _batches(self, table: str, parameters: tuple[int, ...]) -> Iterator[list[_Row]]:
        """Not all rows at once: as Python objects they take ten times the memory."""
        cursor = self.connection.execute(_QUERIES[table].format(table=table), parameters)
        while rows := cursor.fetchmany(_ROWS):
            if table == _RUNTIME:
                rows = [row for row in rows if row[2] is not None and is_device_work(row[2])]
            if rows:
                yield rows

    def _part(self, rows: list[_Row]) -> Spans:
        starts, ends, given_names, lanes, links = zip(*rows, strict=True)
        start_ns, end_ns = np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64)
        names = [str(name) for name in given_names]
        check_times(start_ns, end_ns - start_ns, names.__getitem__)
        return Spans(
            start_ns,
            end_ns,
            self.names.number(names),
            np.array([lane or 0 for lane in lanes], dtype=np.int64),
            np.array([NO_LINK if link is None else link for link in links], dtype=np.int64),
        )

    def _find_device_name(self, device: int) -> str | None:
        if "TARGET_INFO_GPU" not in self.tables:
            return None
        row = self.connection.execute("SELECT name FROM TARGET_INFO_GPU WHERE id = ?", (device,)).fetchone()
        return str(row[0]) if row else None
