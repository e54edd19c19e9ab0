"""Use cases of uploaded traces: upload in parts, complete, delete; analysis in the background and deletion
after expiry. Nothing here knows about HTTP.
"""

import errno
import logging
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock

from anyio.to_thread import run_sync
from pydantic import JsonValue
from sqlalchemy.exc import IntegrityError

from service.auth import Caller
from service.db.access import record
from service.db.engine import Database
from service.db.traces import (
    COMPLETE,
    OPEN,
    TraceRow,
    complete_trace,
    create_trace,
    delete_trace,
    get_trace,
    list_expired,
    list_traces,
    set_analysis,
    set_received,
    usage_of,
)
from service.errors import ConflictError, FullDiskError, NotFoundError, QuotaError
from service.logs import request_id
from service.settings import Settings
from service.strict_json import JsonObject
from service.uploads import Uploads, check_name
from tools.errors import AsapError, InputError
from tools.trace.folder import MAX_TIMELINES, find_trace_files, read_timeline

MAX_FILES = 20_000
log = logging.getLogger("asap.traces")
NOTHING_READABLE = "no file of it could be read as a trace"
UNEXPECTED = "the analysis failed unexpectedly; the server's log has the error"


class StoppedError(Exception):
    """The server stops; the next request starts the analysis again."""


class Analyses:
    """Analyses complete uploads in the background, each tenant's one after the other."""

    def __init__(self, database: Database, uploads: Uploads) -> None:
        self._database, self._uploads = database, uploads
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._lock = Lock()
        self._running: set[str] = set()
        self._is_closed = False

    def ensure_started(self, row: TraceRow) -> None:
        """Starts the analysis if it is missing and not already running here. Idempotent."""
        if row.state != COMPLETE or row.analysis is not None or row.error is not None:
            return
        with self._lock:
            if row.id in self._running:
                return
            self._running.add(row.id)
            if row.tenant not in self._threads:
                self._threads[row.tenant] = ThreadPoolExecutor(1, thread_name_prefix="analysis")
            self._threads[row.tenant].submit(self._run, row)

    def is_running(self, id: str) -> bool:
        return id in self._running

    def close(self) -> None:
        """Kills the processes that read files."""
        self._is_closed = True
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def _check(self) -> None:
        if self._is_closed:
            raise StoppedError

    def _run(self, row: TraceRow) -> None:
        try:
            if not self._is_done(row):
                self._analyse(row.id)
        except StoppedError:
            pass
        except Exception:  # database unavailable: the next request starts it again
            log.exception("an analysis could not be stored", extra={"trace": row.id})
        finally:
            with self._lock:
                self._running.discard(row.id)

    def _is_done(self, row: TraceRow) -> bool:
        """Read again: an analysis may have ended after the request that starts this one read its row."""
        with self._database.read() as conn:
            try:
                now = get_trace(conn, row.tenant, row.id)
            except NotFoundError:
                return True
        return now.analysis is not None or now.error is not None

    def _analyse(self, id: str) -> None:
        from tools.trace.report import analyse_folder

        analysis: JsonObject | None = None
        error: JsonObject | None = None
        try:
            folder = self._uploads.folder(id)
            keep = partial(self._uploads.keep_timeline, id)
            report = analyse_folder(folder, check=self._check, keep_timeline=keep).drawn()
            if report.diagnosis is not None:
                analysis = report.model_dump()
            else:
                unreadable: JsonValue = [file.model_dump() for file in report.unreadable]
                error = {"kind": "input", "message": NOTHING_READABLE, "unreadable": unreadable}
        except AsapError as refused:
            # Without the server's own path.
            message = str(refused).replace(str(self._uploads.folder(id)), "the upload")
            error = {"kind": "input", "message": message}
        except StoppedError:
            raise
        except Exception:  # stored too: a retry would fail again, and clients would wait forever
            log.exception("analysis failed", extra={"trace": id})
            error = {"kind": "unexpected", "message": UNEXPECTED}
        with self._database.begin() as conn:
            set_analysis(conn, id, analysis, error)


DAY_S = 86_400.0
MAX_TIMELINE_WAIT_S = 10.0
POLL_S = 0.05
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class Traces:
    settings: Settings
    database: Database
    uploads: Uploads
    analyses: Analyses

    def create(self, caller: Caller, name: str) -> TraceRow:
        with self.database.begin() as conn:
            most = self.settings.tenant_uploads
            if usage_of(conn, caller.tenant)[0] >= most and not caller.is_local:
                raise QuotaError(f"this tenant keeps {most} uploads, the maximum; delete some")
            return create_trace(conn, caller.tenant, caller.name, name, self.settings.trace_days * DAY_S)

    def list_all(
        self, caller: Caller, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[TraceRow], str | None]:
        """Newest first."""
        with self.database.read() as conn:
            return list_traces(conn, caller.tenant, cursor, limit)

    def get(self, caller: Caller, id: str) -> TraceRow:
        """Starts the analysis of a complete upload that has none."""
        with self.database.read() as conn:
            row = get_trace(conn, caller.tenant, id)
        self.analyses.ensure_started(row)
        return row

    def await_timeline(self, id: str, name: str) -> bytes | None:
        """Waits for an analysis that is about to read the file anyway; None if that takes too long."""
        ends_at = time.monotonic() + MAX_TIMELINE_WAIT_S
        first = [file.name for file in find_trace_files(self.uploads.folder(id))[:MAX_TIMELINES]]
        while (kept := self.uploads.find_timeline(id, name)) is None:
            if name not in first or not self.analyses.is_running(id) or time.monotonic() > ends_at:
                return None
            time.sleep(POLL_S)
        return kept

    def read_timeline(self, id: str, name: str) -> bytes:
        """Raises UnreadableTraceError with the reason."""
        packed = read_timeline(self.uploads.folder(id) / check_name(name))
        self.uploads.keep_timeline(id, name, packed)
        return packed

    async def put_file(
        self, caller: Caller, id: str, name: str, offset: int, chunks: AsyncIterator[bytes]
    ) -> int:
        """How much of the file has arrived. Raises NoRoomError beyond `settings.max_trace_bytes`."""
        check_name(name)
        await run_sync(self._check_open, caller.tenant, id, name)
        others = await run_sync(self.uploads.others_bytes, id, name)
        most = min(self.settings.max_trace_bytes - others, await run_sync(self._room, caller, id, name))
        try:
            await self.uploads.write(id, name, offset, chunks, most)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise FullDiskError("the server's disk is full; what arrived is kept, try again later") from None
        finally:
            received = await run_sync(self._store_received, id, name)
        return received

    def _room(self, caller: Caller, id: str, name: str) -> int:
        """Bytes that this file may have before its tenant has as many as it may."""
        with self.database.read() as conn:
            _, used = usage_of(conn, caller.tenant)
        most = self.settings.tenant_trace_bytes
        room = most - used + self.uploads.received(id, name)
        if room <= 0:
            raise QuotaError(f"this tenant's uploads have {most:,} bytes, the maximum; delete some")
        return room

    def complete(self, caller: Caller, id: str, files: Mapping[str, str]) -> TraceRow:
        """Checks the SHA-256 of every file. Idempotent with the same digests."""
        with self.database.read() as conn:
            row = get_trace(conn, caller.tenant, id)
        if row.state != OPEN:
            if {file.name: file.sha256 for file in row.files} != files:
                raise ConflictError(f"trace {row.id} is already {row.state} with other files", field="files")
            return row
        self._check_digests(row, files)
        with self.database.begin() as conn:
            row = complete_trace(conn, caller.tenant, id, files)
        self.analyses.ensure_started(row)
        return row

    def delete(self, caller: Caller, id: str) -> None:
        with self.database.begin() as conn:
            delete_trace(conn, caller.tenant, id)
            record(conn, caller.tenant, caller.name, "trace.delete", id, request_id.get())
        self.uploads.discard(id)

    def _check_open(self, tenant: str, id: str, name: str) -> None:
        with self.database.read() as conn:
            row = get_trace(conn, tenant, id)
        if row.state != OPEN:
            raise ConflictError(f"trace {id} is {row.state}; nothing can be added", field="state")
        names = {file.name for file in row.files}
        if name not in names and len(names) >= MAX_FILES:
            raise ConflictError(f"trace {id} has {MAX_FILES} files, the maximum", field="name")

    def _store_received(self, id: str, name: str) -> int:
        received = self.uploads.received(id, name)
        try:
            with self.database.begin() as conn:
                set_received(conn, id, name, received)
        except IntegrityError:  # deleted meanwhile
            raise NotFoundError("trace", id) from None
        return received

    def _check_digests(self, row: TraceRow, files: Mapping[str, str]) -> None:
        uploaded = {file.name for file in row.files}
        for name in uploaded ^ files.keys():
            is_missing = name in files
            says = "nothing of it was uploaded" if is_missing else "was uploaded, and is not named here"
            raise InputError(f"files.{name}", "a digest" if is_missing else "nothing", says)
        for name, digest in files.items():
            arrived = self.uploads.digest(row.id, name)
            if arrived != digest:
                allowed = f"what arrived has {arrived}; upload it again from offset 0"
                raise InputError(f"files.{name}", digest, allowed)


SWEEP_EVERY_S = 600.0


def sweep(database: Database, uploads: Uploads, now_s: float) -> int:
    """How many were deleted. Files first: files without a row would never be found again."""
    with database.read() as conn:
        expired = list_expired(conn, now_s)
    for row in expired:
        uploads.discard(row.id)
        with suppress(NotFoundError), database.begin() as conn:  # another replica sweeps too
            delete_trace(conn, row.tenant, row.id)
    if expired:
        log.info("deleted expired traces", extra={"deleted": len(expired)})
    return len(expired)
