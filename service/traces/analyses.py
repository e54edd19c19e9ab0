"""Analyses complete uploads in the background, each tenant's one after the other."""

import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Lock

from pydantic import JsonValue

from service.db.engine import Database
from service.disk import FULL
from service.errors import NotFoundError
from service.strict_json import JsonObject
from service.traces.model import COMPLETE, TraceRow
from service.traces.store import get_trace, set_analysis
from service.traces.uploads import Uploads
from tools.errors import AsapError

NOTHING_READABLE = "no file of it could be read as a trace"
UNEXPECTED = "the analysis failed unexpectedly; the server's log has the error"
log = logging.getLogger("asap.traces")


class StoppedError(Exception):
    """The server stops; the next request starts the analysis again."""


class Analyses:
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

        def run() -> None:
            try:
                with self._database.read() as conn:
                    # Read again: one may have ended after the request that starts this one read its row.
                    now = get_trace(conn, row.tenant, row.id)
                if now.analysis is None and now.error is None:
                    self._analyse(row.id)
            except (StoppedError, NotFoundError):
                pass
            except Exception:  # database unavailable, or the disk full: the next request starts it again
                log.exception("an analysis could not be stored", extra={"trace": row.id})
            finally:
                with self._lock:
                    self._running.discard(row.id)

        with self._lock:
            if row.id in self._running:
                return
            self._running.add(row.id)
            if row.tenant not in self._threads:
                self._threads[row.tenant] = ThreadPoolExecutor(1, thread_name_prefix="analysis")
            self._threads[row.tenant].submit(run)

    def is_running(self, id: str) -> bool:
        return id in self._running

    def close(self) -> None:
        """Kills the processes that read files."""
        self._is_closed = True
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)

    def _analyse(self, id: str) -> None:
        from tools.trace.report import analyse_folder

        def check() -> None:
            if self._is_closed:
                raise StoppedError

        folder = self._uploads.folder(id)
        analysis: JsonObject | None = None
        error: JsonObject | None = None
        try:
            keep = partial(self._uploads.keep_timeline, id)
            found = analyse_folder(folder, check=check, keep_timeline=keep)
            report = found.drawn()
            self._uploads.keep_overview(id, found.overview())
            if report.diagnosis is not None:
                analysis = report.model_dump()
            else:
                unreadable: JsonValue = [file.model_dump() for file in report.unreadable]
                error = {"kind": "input", "message": NOTHING_READABLE, "unreadable": unreadable}
        except AsapError as refused:
            # Without the server's own path.
            error = {"kind": "input", "message": str(refused).replace(str(folder), "the upload")}
        except StoppedError:
            raise
        except Exception as failure:  # stored too: a retry would fail again, and clients would wait forever
            if isinstance(failure, OSError) and failure.errno in FULL:  # that would not, once there is room
                raise
            log.exception("analysis failed", extra={"trace": id})
            error = {"kind": "unexpected", "message": UNEXPECTED}
        with self._database.begin() as conn:
            set_analysis(conn, id, analysis, error)
