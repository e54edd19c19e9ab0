"""The analysis behind a session's traces: kept with an upload, made anew for a folder of the server."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from service.api.parts import Parts
from service.api.problems import ApiError
from service.api.turns import in_turn
from service.errors import NotFoundError
from service.store.rows import SessionRow
from service.store.traces import get_trace
from service.uploads import find_reference
from service.web.traces import DRAWING, drawing_of

AGAIN_S = 2

Data = Mapping[str, Any]


def get_analysis(parts: Parts, row: SessionRow) -> Data:
    """What `asap diagnose --json` prints, with what figures need; NotFoundError where there are no traces."""
    traces = str((row.request or {}).get("traces") or "")
    id = find_reference(traces)
    if not traces:
        raise NotFoundError("trace of session", row.id)
    if id:
        return _of_upload(parts, row.tenant, id)
    return in_turn(parts, lambda _: _of_folder(traces, _written(Path(traces))))


def _of_upload(parts: Parts, tenant: str, id: str) -> Data:
    with parts.database.read() as conn:
        trace = get_trace(conn, tenant, id)
    if trace.analysis is None:
        if trace.error:
            raise NotFoundError("analysis of trace", id)
        parts.analyses.want(trace)
        wait = {"Retry-After": str(AGAIN_S)}
        raise ApiError("unavailable", "the traces are being analysed; ask again", headers=wait)
    return trace.analysis


def _written(folder: Path) -> tuple[tuple[Path, int], ...]:
    """Its files, and when each was written."""
    from tools.trace.folder import find_trace_files

    return tuple((file, file.stat().st_mtime_ns) for file in find_trace_files(folder))


@lru_cache(maxsize=8)
def _of_folder(folder: str, _files: tuple[tuple[Path, int], ...]) -> Data:
    """Kept for as long as nothing in the folder is written."""
    from tools.trace.report import analyse_folder

    report = analyse_folder(Path(folder))
    return {**report.data, DRAWING: drawing_of(report.profile)}
