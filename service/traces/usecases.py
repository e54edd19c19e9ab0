"""Use cases of uploaded traces: upload in parts, complete, delete, delete after expiry.

Nothing here knows about HTTP.
"""

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from anyio import sleep
from anyio.to_thread import run_sync
from sqlalchemy.exc import IntegrityError

from service.access.auth import Caller
from service.access.store import record
from service.db.engine import Database
from service.db.queries import lock_tenant
from service.disk import FULL
from service.errors import ConflictError, FullDiskError, NotFoundError, QuotaError
from service.logs import request_id
from service.settings import DAY_S, Settings
from service.traces.analyses import Analyses
from service.traces.model import OPEN, TraceDetail, TraceRow
from service.traces.store import (
    complete_trace,
    create_trace,
    delete_trace,
    get_trace,
    list_expired,
    list_traces,
    set_received,
    usage_of,
)
from service.traces.uploads import Uploads, check_name
from tools.errors import InputError
from tools.trace.folder import MAX_TIMELINES, find_trace_files, read_timeline

MAX_FILES = 20_000
MAX_TIMELINE_WAIT_S = 10.0
POLL_S = 0.1
RESERVED_BYTES = 16 << 20
"""At a time, of a file whose length is not stated."""
SWEEP_EVERY_S = 600.0
log = logging.getLogger("asap.traces")


@dataclass(frozen=True)
class Traces:
    settings: Settings
    database: Database
    uploads: Uploads
    analyses: Analyses

    def create(self, caller: Caller, name: str) -> TraceRow:
        with self.database.begin() as conn:
            lock_tenant(conn, caller.tenant)
            most = self.settings.tenant_uploads
            if usage_of(conn, caller.tenant)[0] >= most and not caller.is_local:
                raise QuotaError(f"this tenant keeps {most} uploads, the maximum; delete some")
            days = self.settings.days_kept(caller.tenant, "traces") or self.settings.trace_days
            return create_trace(conn, caller.tenant, caller.name, name, days * DAY_S)

    def list_all(
        self, caller: Caller, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[TraceRow], str | None]:
        """Newest first."""
        with self.database.read() as conn:
            return list_traces(conn, caller.tenant, cursor, limit)

    def get(self, caller: Caller, id: str) -> TraceDetail:
        """Starts the analysis of a complete upload that has none."""
        with self.database.read() as conn:
            row = get_trace(conn, caller.tenant, id)
        self.analyses.ensure_started(row)
        if row.state != OPEN:
            return row
        # Of a file that is being sent, or was when the server died, more is reserved than has arrived.
        received = self.uploads.received
        files = [file.model_copy(update={"received_bytes": received(id, file.name)}) for file in row.files]
        return row.model_copy(update={"files": files})

    async def await_timeline(self, id: str, name: str) -> bytes | None:
        """Waits for an analysis that is about to read the file anyway; None if that takes too long. Between
        two looks no thread is held."""

        def first() -> list[str]:
            return [file.name for file in find_trace_files(self.uploads.folder(id))[:MAX_TIMELINES]]

        ends_at, is_first = time.monotonic() + MAX_TIMELINE_WAIT_S, name in await run_sync(first)
        while (kept := await run_sync(self.uploads.find_timeline, id, name)) is None:
            if not is_first or not self.analyses.is_running(id) or time.monotonic() > ends_at:
                return None
            await sleep(POLL_S)
        return kept

    def read_timeline(self, id: str, name: str) -> bytes:
        """Raises UnreadableTraceError with the reason."""
        packed = read_timeline(self.uploads.folder(id) / check_name(name))
        self.uploads.keep_timeline(id, name, packed)
        return packed

    async def put_file(
        self, caller: Caller, id: str, name: str, offset: int, length: int, chunks: AsyncIterator[bytes]
    ) -> int:
        """How much of the file has arrived; `length` is what the sender says will come, 0 if nothing.
        Raises NoRoomError beyond `settings.max_trace_bytes`."""
        check_name(name)

        def reserve(end: int) -> int:
            """How far the file may reach, reserved before it is written: others that write see it."""
            with self.database.begin() as conn:
                lock_tenant(conn, caller.tenant)
                row = get_trace(conn, caller.tenant, id)
                _, used = usage_of(conn, caller.tenant)
                if row.state != OPEN:
                    raise ConflictError(f"trace {id} is {row.state}; nothing can be added", path="state")
                sizes = {file.name: file.received_bytes for file in row.files}
                if name not in sizes and len(sizes) >= MAX_FILES:
                    raise ConflictError(f"trace {id} has {MAX_FILES} files, the maximum", path="name")
                most, reserved = self.settings.tenant_trace_bytes, sizes.pop(name, 0)
                room = most - used + reserved
                if room <= 0:
                    raise QuotaError(f"this tenant's uploads have {most:,} bytes, the maximum; delete some")
                wanted = max(end, offset + length if length else end + RESERVED_BYTES)
                reach = min(wanted, room, self.settings.max_trace_bytes - sum(sizes.values()))
                set_received(conn, id, name, max(reach, reserved))
            return reach

        def store_received() -> int:
            received = self.uploads.received(id, name)
            try:
                with self.database.begin() as conn:
                    set_received(conn, id, name, received)
            except IntegrityError:  # deleted meanwhile
                raise NotFoundError("trace", id) from None
            return received

        reach = await run_sync(reserve, offset)
        try:
            await self.uploads.write(id, name, offset, chunks, reach, reserve)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise FullDiskError("the server's disk is full; what arrived is kept, try again later") from None
        finally:
            received = await run_sync(store_received)
        return received

    def complete(self, caller: Caller, id: str, files: Mapping[str, str]) -> TraceDetail:
        """Checks the SHA-256 of every file. Idempotent with the same digests."""
        with self.database.read() as conn:
            row = get_trace(conn, caller.tenant, id)
        if row.state != OPEN:
            if {file.name: file.sha256 for file in row.files} != files:
                raise ConflictError(f"trace {row.id} is already {row.state} with other files", path="files")
            return row
        for name in {file.name for file in row.files} ^ files.keys():
            given, rule = (
                ("a digest", "was not uploaded")
                if name in files
                else ("nothing", "was uploaded, and is not named here")
            )
            raise InputError(f"files.{name}", given, rule)
        for name, digest in files.items():
            arrived = self.uploads.digest(row.id, name)
            if arrived != digest:
                rule = f"what arrived has {arrived}; upload it again from offset 0"
                raise InputError(f"files.{name}", digest, rule)
        with self.database.begin() as conn:
            row = complete_trace(conn, caller.tenant, id, files)
        self.analyses.ensure_started(row)
        return row

    def delete(self, caller: Caller, id: str) -> None:
        with self.database.begin() as conn:
            delete_trace(conn, caller.tenant, id)
            record(conn, caller.tenant, caller.name, "trace.delete", id, request_id.get())
        self.uploads.discard(id)


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
