"""Runs one dispatch of a session: claimed, run by the graph, stored, or handed back.

At-least-once: events have keys, progress is in the checkpoint, and every write is fenced by the claim.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import sqlalchemy as sa
from langgraph.checkpoint.base import BaseCheckpointSaver

from graph.context import Context, Event
from graph.report import Report
from graph.request import Request, parse_request
from graph.session import Outcome, Session
from service.checkpoints import GuardedSaver
from service.db.engine import CONNECTION_ERRORS, Database, is_outage, retry_transaction
from service.db.lifecycle import find_decision, set_state
from service.db.models import CANCELLED, COMPLETED, FAILED, WAITING, SessionRow
from service.db.sessions import check_claim, insert_events, keep_search, lock_session
from service.errors import CancelledError, FencedError, HandBackError, OutOfTimeError
from service.measurements import add_runs, calibration_of, measured_runs, runs_known
from service.settings import Settings
from service.strict_json import JsonObject
from service.uploads import Uploads, find_reference
from service.worker.cleanup import prune_checkpoints, thread_of
from service.worker.jobs import JobQueue, Lease
from tools.errors import AsapError, InfeasibleError, InputError
from tools.search.ranked import Ranked, pack

End = tuple[str, JsonObject]
"""The state, and the columns that go with it."""


def end_of(outcome: Outcome) -> End:
    waiting = outcome.waiting_for
    if waiting is not None:
        return WAITING, {
            "waiting_for": waiting,
            **_list_columns(waiting.get("bottleneck"), waiting.get("proposals")),
        }
    report = outcome.report
    if not report:
        return FAILED, _failure("unexpected", "the session ended without a report; retry it")
    return COMPLETED, {
        "report": report.model_dump(mode="json"),
        "verdict": report.verdict,
        **_list_columns(report.diagnosis.bottleneck, _chosen(report)),
    }


def _chosen(report: Report) -> list[JsonObject]:
    """The proposal that counts; none after a rejection."""
    return [] if report.chosen is None else [report.proposals[report.chosen - 1].model_dump()]


def _list_columns(bottleneck: str | None, proposals: Sequence[JsonObject] | None) -> JsonObject:
    """What a list shows of the proposal that counts."""
    best = proposals[0] if proposals else {}
    measured = best.get("measured")
    return {
        "bottleneck": bottleneck,
        "speedup": best.get("speedup"),
        "measured_speedup": measured.get("speedup") if isinstance(measured, Mapping) else None,
    }


def failure_of(error: Exception, session_id: str) -> End:
    """Errors of ASAP speak for themselves; of others only the log tells more, since they may hold secrets."""
    if isinstance(error, InputError):
        return FAILED, _failure("input", str(error), error.field)
    if isinstance(error, InfeasibleError):
        return FAILED, _failure("infeasible", str(error))
    if isinstance(error, AsapError):
        return FAILED, _failure("failed", str(error))
    message = f"an unexpected {type(error).__name__}; the server's log has it under session {session_id}"
    return FAILED, _failure("unexpected", message)


def _failure(kind: str, message: str, field: str | None = None) -> JsonObject:
    return {"error": {"kind": kind, "message": message, "field": field}}


CHECK_EVERY_S = 1.0
EVENTS_EVERY_S = 0.2

_log = logging.getLogger(__name__)


class Observer(Protocol):
    """Counts: service.api.state.Metrics if the API runs in this process."""

    def observe_wait(self, seconds: float) -> None: ...

    def observe_event(self, event: Mapping[str, object]) -> None: ...


@dataclass(frozen=True)
class WorkerDeps:
    """What all jobs of a worker work with."""

    settings: Settings
    database: Database
    queue: JobQueue[SessionRow]
    context: Context
    checkpointer: BaseCheckpointSaver[Any]
    uploads: Uploads
    lease: Lease
    must_stop: Callable[[], bool]
    """Whether the time to finish is over."""
    observer: Observer | None = None
    logs: "set[SessionLog]" = field(default_factory=set)
    """Of the sessions that run now."""

    def check(self) -> None:
        """Raises HandBackError if this worker may not go on."""
        if self.must_stop():
            raise HandBackError("this worker stops")
        if not self.lease.is_held():
            raise HandBackError("this worker has lost its lease")

    @contextmanager
    def log_of(self, row: SessionRow) -> "Iterator[SessionLog]":
        log = SessionLog(self, row)
        self.logs.add(log)
        try:
            yield log
        finally:
            self.logs.discard(log)

    def flush_logs(self) -> None:
        """What no later event has taken along; a session that must stop finds out by itself."""
        for log in list(self.logs):
            with suppress(AsapError, *CONNECTION_ERRORS):
                log.flush_late()


class SessionLog:
    """The events of one dispatch, several per transaction: a session emits 50 in a second or less.

    They are written before the checkpoint of their node, at once if the last ones are older than
    EVENTS_EVERY_S, and else within that time. A process killed before has lost them together with the node's
    result: it runs again and emits them again, with the same keys. Each attempt has keys of its own.
    """

    def __init__(self, deps: WorkerDeps, row: SessionRow) -> None:
        self._deps, self._row = deps, row
        self._pending: list[Event] = []
        self._count = 0
        self._lock = threading.RLock()
        self._written_at = -math.inf

    def emit(self, event: Event) -> None:
        """Here a session learns of everything that must stop it."""
        self._deps.check()
        self._pending.append({**event, "key": f"{self._row.attempt}/{event['key']}"})
        if self._is_late():
            self.flush()
        if self._deps.observer:
            self._deps.observer.observe_event(event)

    def flush(self) -> None:
        with self._lock:
            _write(self._deps, self._write_claimed)
            self._forget_written()

    def flush_late(self) -> None:
        if self._pending and self._is_late():
            with self._lock:
                with self._deps.database.begin(flush=False) as conn:
                    self._write_claimed(conn)
                self._forget_written()

    @contextmanager
    def claimed(self) -> Iterator[sa.Connection]:
        """No other worker takes the session over in this block; raises FencedError if one has already.

        The events go first: on SQLite the checkpoint is in another file, and must not be there before them.
        """
        with self._lock:
            if self._deps.database.is_sqlite and self._pending:
                self.flush()
            with self._deps.database.begin(flush=False) as conn:
                self._write_claimed(conn)
                yield conn
            self._forget_written()

    def write(self, conn: sa.Connection) -> None:
        """With the session's last state: whatever it was, what led to it is kept."""
        with self._lock:
            if self._pending:
                lock_session(conn, self._row.id, self._row.fence)
                insert_events(conn, self._row.id, self._pending)

    def _write_claimed(self, conn: sa.Connection) -> None:
        check_claim(conn, self._row.id, self._row.fence)
        self._count = len(self._pending)
        if self._count:
            insert_events(conn, self._row.id, self._pending[: self._count])

    def _forget_written(self) -> None:
        del self._pending[: self._count]
        self._written_at = time.monotonic()

    def _is_late(self) -> bool:
        return time.monotonic() - self._written_at >= EVENTS_EVERY_S


def run_session(deps: WorkerDeps, row: SessionRow) -> None:
    """Until the session has ended or waits. Its failures are stored; raised is what stops this worker."""
    if deps.observer and row.started_at is not None and row.claims == 1:
        deps.observer.observe_wait(row.updated_at - row.queued_at)
    with deps.log_of(row) as log:
        wanted, columns = _outcome(deps, row, log)

        def end(conn: sa.Connection) -> str:
            log.write(conn)
            return set_state(conn, row.id, wanted, row.fence, **columns)

        state = retry_transaction(deps.database, end)
    if state == COMPLETED:
        _keep_measurements(deps, row, columns)
    prune_checkpoints(deps.checkpointer, thread_of(row.id, row.attempt), state)


def _keep_measurements(deps: WorkerDeps, row: SessionRow, columns: JsonObject) -> None:
    """What the session measured calibrates the next one of a named cluster."""
    if _cluster_name(row) is None:
        return
    scenario, report = parse_request(row.request or {}).scenario, Report.model_validate(columns["report"])
    runs = measured_runs(scenario, report)
    if runs:
        retry_transaction(deps.database, lambda conn: add_runs(conn, row.tenant, runs, f"session {row.id}"))


def _cluster_name(row: SessionRow) -> str | None:
    cluster = (row.request or {}).get("cluster")
    name = cluster.get("name") if isinstance(cluster, Mapping) else None
    return name if isinstance(name, str) else None


def _outcome(deps: WorkerDeps, row: SessionRow, log: SessionLog) -> End:
    try:
        return end_of(_session(deps, row, log).run(*_arguments(deps, row, log)))
    except CancelledError:
        return CANCELLED, {}
    except (FencedError, HandBackError):
        raise
    except Exception as error:
        if is_outage(error):
            raise
        _log.exception("session %s failed", row.id, extra={"session": row.id})
        return failure_of(error, row.id)


def _session(deps: WorkerDeps, row: SessionRow, log: SessionLog) -> Session:
    """A budget can only be smaller than the installation's."""
    limits = deps.context.limits.within(row.budget)
    # Trials take their own time; between them the coordinator sees to what is left.
    ends_at = math.inf if row.mode == "tune" else time.monotonic() + limits.session_s
    name = _cluster_name(row)
    with deps.database.read() as conn:
        calibration = calibration_of(conn, row.tenant, name)
        runs = runs_known(conn, row.tenant, name)
    context = replace(
        deps.context,
        limits=limits,
        calibration=calibration or deps.context.calibration,
        runs=runs,
        progress=_checking_progress(lambda: _check(deps, row, ends_at)),
        must_cancel=lambda: _must_cancel(deps, row),
        keep_plans=lambda plans: _keep_plans(deps, row, plans),
    )
    saver = GuardedSaver(deps.checkpointer, log.claimed)
    return Session(thread_of(row.id, row.attempt), context, saver)


def _arguments(
    deps: WorkerDeps, row: SessionRow, log: SessionLog
) -> tuple[Request, Callable[[Event], None], JsonObject | None]:
    request = parse_request(_with_folder(deps, row.request or {}), row.tenant or None)
    with deps.database.read() as conn:
        decision = find_decision(conn, row.id, row.attempt)
    return request, log.emit, decision


def _with_folder(deps: WorkerDeps, request: JsonObject) -> JsonObject:
    """An upload lies in a folder that only the server knows."""
    id = find_reference(str(request.get("traces") or ""))
    return request if id is None else {**request, "traces": str(deps.uploads.folder(id))}


def _keep_plans(deps: WorkerDeps, row: SessionRow, plans: Ranked) -> None:
    """Fenced like an event: a worker that lost the session overwrites nothing."""
    packed = pack(plans)

    def write(conn: sa.Connection) -> None:
        check_claim(conn, row.id, row.fence)
        keep_search(conn, row.id, packed)

    _write(deps, write)


def _check(deps: WorkerDeps, row: SessionRow, ends_at: float) -> None:
    """Between nodes the coordinator sees to the time and reports what it has; a search has nothing yet."""
    if time.monotonic() > ends_at:
        raise OutOfTimeError(
            "the time of the session was over before its traces were read and its search was done; allow it "
            "more (budget.session_s, ASAP_SESSION_S), or narrow the search by constraints"
        )
    _write(deps, lambda conn: check_claim(conn, row.id, row.fence))


def _write(deps: WorkerDeps, work: Callable[[sa.Connection], object]) -> None:
    deps.check()
    retry_transaction(deps.database, work, lambda: deps.must_stop() or not deps.lease.is_held(), flush=False)


def _checking_progress(check: Callable[[], None]) -> Callable[[float], None]:
    """A search emits no event, for minutes if there are many plans; but it reports its progress."""
    checked_at = time.monotonic()

    def progress(_done: float) -> None:
        nonlocal checked_at
        if time.monotonic() - checked_at >= CHECK_EVERY_S:
            check()
            checked_at = time.monotonic()

    return progress


def _must_cancel(deps: WorkerDeps, row: SessionRow) -> bool:
    """Asked while a trial runs. Whoever takes the session over finds the trial's job by its key."""
    try:
        _write(deps, lambda conn: check_claim(conn, row.id, row.fence))
    except CancelledError:
        return True
    return False
