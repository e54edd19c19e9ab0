"""Analyses of uploaded traces, in the background, one at a time.

Begun when an upload is completed, and again by whoever asks for a result that is not there: so a process that
dies in the middle loses nothing but time.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from service.store.database import Database
from service.store.traces import COMPLETE, TraceRow, set_analysis
from service.uploads import Uploads
from tools.errors import AsapError

log = logging.getLogger("asap.traces")
NOTHING_READABLE = "no file of it could be read as a trace"
UNEXPECTED = "the analysis failed in a way that was not expected; the server's log has it"


class Analyses:
    def __init__(self, database: Database, uploads: Uploads) -> None:
        self._database, self._uploads = database, uploads
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="analysis")
        self._lock = Lock()
        self._begun: set[str] = set()

    def want(self, row: TraceRow) -> None:
        """Begins the analysis where it is still missing and not under way here."""
        if row.state != COMPLETE or row.analysis is not None or row.error is not None:
            return
        with self._lock:
            if row.id in self._begun:
                return
            self._begun.add(row.id)
        self._threads.submit(self._run, row.id)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, id: str) -> None:
        try:
            self._analyse(id)
        except Exception:  # the database is away: whoever asks next begins it again
            log.exception("an analysis could not be kept", extra={"trace": id})
        finally:
            with self._lock:
                self._begun.discard(id)

    def _analyse(self, id: str) -> None:
        from service.web.traces import DRAWING, drawing_of
        from tools.trace.report import analyse_folder

        analysis, error = None, None
        try:
            report = analyse_folder(self._uploads.folder(id))
            analysis = {**report.data, DRAWING: drawing_of(report.profile)}
        except AsapError as refused:
            # The server's own path stands in the message.
            error = {
                "kind": "input",
                "message": str(refused).replace(str(self._uploads.folder(id)), "the upload"),
            }
        except Exception:  # kept too: it would fail again, and whoever waits for it would wait for ever
            log.exception("analysis failed", extra={"trace": id})
            error = {"kind": "unexpected", "message": UNEXPECTED}
        if analysis is not None and analysis["diagnosis"] is None:
            unreadable = analysis["unreadable"]
            analysis, error = None, {"kind": "input", "message": NOTHING_READABLE, "unreadable": unreadable}
        with self._database.begin() as conn:
            set_analysis(conn, id, analysis, error)
