"""Runs one dispatch of a session: claimed, run by the graph, stored, or handed back.

At-least-once: events have keys, progress is in the checkpoint, and every write is fenced by the claim.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from langgraph.checkpoint.base import BaseCheckpointSaver
from pydantic import JsonValue

from graph.context import Context
from graph.events import SessionFailure
from graph.headline import Headline
from graph.report import Report
from graph.request import Budget, parse_request
from graph.session import Session, SessionOutcome
from service.checkpoints import GuardedSaver, open_checkpoints
from service.clusters.usecases import add_runs, calibration_of, measured_runs, runs_known
from service.db.engine import retry_transaction
from service.db.outages import CONNECTION_ERRORS, is_outage
from service.disk import FULL, MIN_FREE_BYTES, free_bytes
from service.errors import CancelledError, FencedError, HandBackError, OutOfTimeError
from service.jobs.engine import Jobs
from service.jobs.loop import Loop
from service.jobs.model import CANCELLED, COMPLETED, FAILED
from service.jobs.worker import WorkerDeps
from service.retention import SWEEP_EVERY_S, delete_expired
from service.runtime import jobs_folder, open_context, reasoner_for
from service.sessions.cleanup import end_orphans, erase_deleted, erase_trials
from service.sessions.dispatch import SessionQueue, session_queue
from service.sessions.forks import fork_point
from service.sessions.lifecycle import find_decision, set_state
from service.sessions.log import EVENTS_EVERY_S, Observer, SessionLog
from service.sessions.model import WAITING, SessionRow, thread_of
from service.sessions.store import keep_search
from service.strict_json import JsonObject
from service.traces.uploads import Uploads, find_reference
from tools.errors import AsapError, InfeasibleError, InputError
from tools.launch.status import LaunchError
from tools.search.ranked import Ranked, pack
from tools.trials.run import LaunchedTrials

CHECK_EVERY_S = 1.0
ROOM_PAUSE_S = 10.0
"""The shortest wait after a write that found no room: each retry uses up one of the session's claims."""
SESSION_POLL_S = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SessionDeps:
    worker: WorkerDeps
    queue: SessionQueue
    context: Context
    checkpointer: BaseCheckpointSaver[Any]
    uploads: Uploads
    observer: Observer | None = None
    logs: set[SessionLog] = field(default_factory=set)
    """One per session that runs now."""

    @contextmanager
    def log_of(self, row: SessionRow) -> Iterator[SessionLog]:
        log = SessionLog(self.worker, row, self.observer)
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


class SessionEnd(NamedTuple):
    state: str
    columns: JsonObject
    """That go with the state."""


def session_jobs(
    worker: WorkerDeps, context: Context | None = None, observer: Observer | None = None
) -> Jobs[SessionRow]:
    settings, database = worker.settings, worker.database
    with database.alone():
        checkpointer = worker.resources.enter_context(open_checkpoints(settings))
    deps = SessionDeps(
        worker=worker,
        queue=session_queue(database),
        context=context or open_context(settings, saves_cases=True, tenant=None),
        checkpointer=checkpointer,
        uploads=Uploads(settings),
        observer=observer,
    )
    loops = [
        Loop("events", EVENTS_EVERY_S, deps.flush_logs),
        Loop("retention", SWEEP_EVERY_S, lambda: delete_expired(settings, database)),
        Loop("cleanup", settings.lease_s, lambda: erase_deleted(database, deps.queue, checkpointer)),
    ]
    trials, folder = deps.context.trials, jobs_folder(settings)
    if isinstance(trials, LaunchedTrials):
        loops.append(Loop("orphans", settings.lease_s, lambda: end_orphans(database, trials, folder)))
        erase = lambda: erase_trials(database, folder, trials.results)  # noqa: E731
        loops.append(Loop("trials", SWEEP_EVERY_S, erase))
    per_tenant = settings.tenant_sessions
    if database.is_sqlite:  # one worker: one tenant's slow sessions must leave another's a place
        per_tenant = min(per_tenant, max(1, settings.worker_sessions - 1))
    return Jobs(
        queue=deps.queue,
        run=lambda row: run_session(deps, row),
        per_worker=settings.worker_sessions,
        per_partition=per_tenant,
        poll_s=SESSION_POLL_S,
        loops=tuple(loops),
    )


def run_session(deps: SessionDeps, row: SessionRow) -> None:
    """Until the session has ended or waits. Its failures are stored; raised is what stops this worker."""
    database = deps.worker.database
    if deps.observer and row.started_at is not None and row.claims == 1:
        deps.observer.observe_wait(row.updated_at - row.queued_at)
    with deps.log_of(row) as log:
        end = _run(deps, row, log)

        def store(conn: sa.Connection) -> str:
            log.write(conn)
            return set_state(conn, row.id, end.state, row.fence, **end.columns)

        state = retry_transaction(database, store)
    if state == COMPLETED and _cluster_name(row) is not None:
        # What the session measured calibrates the next one of a named cluster.
        scenario = parse_request(row.request).scenario
        runs = measured_runs(scenario, Report.model_validate(end.columns["report"]))
        if runs:
            retry_transaction(database, lambda conn: add_runs(conn, row.tenant, runs, f"session {row.id}"))


def _run(deps: SessionDeps, row: SessionRow, log: SessionLog) -> SessionEnd:
    try:
        request = dict(row.request)
        # An upload lies in a folder that only the server knows.
        upload = find_reference(str(request.get("traces") or ""))
        if upload is not None:
            request["traces"] = str(deps.uploads.folder(upload))
        with deps.worker.database.read() as conn:
            decision = find_decision(conn, row.id, row.attempt)
        if decision is None and row.forked_from:
            decision = row.forked_from.changed.decision
        session = _session(deps, row, log)
        parsed = parse_request(request, row.tenant or None)
        with _room_awaited(deps, row, log):
            return end_of(session.run(parsed, log.emit, decision, fork_point(row)))
    except CancelledError:
        return SessionEnd(CANCELLED, {})
    except (FencedError, HandBackError):
        raise
    except Exception as error:
        if is_outage(error):
            raise
        _log.exception("session %s failed", row.id, extra={"session": row.id})
        return failure_of(error, row.id)


@contextmanager
def _room_awaited(deps: SessionDeps, row: SessionRow, log: SessionLog) -> Iterator[None]:
    """That something, as a trial's results, could not be written says nothing about the session: it waits
    until there is room, and is handed back."""
    settings = deps.worker.settings
    try:
        yield
    except (OSError, LaunchError) as error:
        is_full = isinstance(error, OSError) and error.errno in FULL
        if not is_full and free_bytes(settings) >= MIN_FREE_BYTES:
            raise
        _log.warning("session %s waits for room on the disk: %s", row.id, error, extra={"session": row.id})
        ends_at = time.monotonic() + ROOM_PAUSE_S
        while time.monotonic() < ends_at or free_bytes(settings) < MIN_FREE_BYTES:
            log.check()
            time.sleep(CHECK_EVERY_S)
        raise HandBackError("the disk was full") from error


def _session(deps: SessionDeps, row: SessionRow, log: SessionLog) -> Session:
    """A budget can only be smaller than the installation's."""
    limits = deps.context.limits.within(Budget.model_validate(row.budget) if row.budget else None)
    # Trials take their own time; between them the coordinator sees to what is left.
    ends_at = math.inf if row.mode == "tune" else time.monotonic() + limits.session_s
    name = _cluster_name(row)
    calibration = calibration_of(deps.worker.database, row.tenant, name)
    runs = runs_known(deps.worker.database, row.tenant, name)

    def keep_plans(plans: Ranked) -> None:
        packed = pack(plans)
        log.write_fenced(lambda conn: keep_search(conn, row.id, packed))

    context = replace(
        deps.context,
        reasoner=reasoner_for(deps.worker.settings, row.tenant, deps.context.reasoner),
        limits=limits,
        calibration=calibration or deps.context.calibration,
        runs=runs,
        progress=_checking_progress(log, ends_at),
        must_cancel=lambda: _must_cancel(log),
        keep_plans=keep_plans,
    )
    return Session(thread_of(row.id, row.attempt), context, GuardedSaver(deps.checkpointer, log.claimed))


def _cluster_name(row: SessionRow) -> str | None:
    cluster = row.request.get("cluster")
    name = cluster.get("name") if isinstance(cluster, Mapping) else None
    return name if isinstance(name, str) else None


def _checking_progress(log: SessionLog, ends_at: float) -> Callable[[float], None]:
    """A search emits no event, for minutes if there are many plans; but it reports its progress.

    Between nodes the coordinator sees to the time and reports what it has; a search has nothing yet.
    """
    checked_at = time.monotonic()

    def progress(_done: float) -> None:
        nonlocal checked_at
        if time.monotonic() - checked_at < CHECK_EVERY_S:
            return
        if time.monotonic() > ends_at:
            raise OutOfTimeError(
                "the time of the session was over before its traces were read and its search was done; "
                "allow it more (budget.session_s, ASAP_SESSION_S), or narrow the search by constraints"
            )
        log.check()
        checked_at = time.monotonic()

    return progress


def _must_cancel(log: SessionLog) -> bool:
    """Asked while a trial runs. Whoever takes the session over finds the trial's job by its key."""
    try:
        log.check()
    except CancelledError:
        return True
    return False


def end_of(outcome: SessionOutcome) -> SessionEnd:
    waiting, report = outcome.waiting_for, outcome.report
    if waiting is not None:
        known = waiting.get("headline")
        headline = Headline.model_validate(known) if known else None
        return _ended(WAITING, headline, waiting_for=waiting, bottleneck=waiting.get("bottleneck"))
    if not report:
        return _failed("unexpected", "the session ended without a report; retry it")
    stored = report.model_dump(mode="json")
    return _ended(COMPLETED, report.headline, report=stored, bottleneck=report.diagnosis.bottleneck)


def _ended(state: str, headline: Headline | None, **columns: JsonValue) -> SessionEnd:
    """With what a list shows without the report: no speedup where nothing is gained."""
    if headline is None:
        return SessionEnd(state, columns)
    listed: dict[str, JsonValue] = {
        "headline": headline.model_dump(mode="json"),
        "verdict": headline.text,
        "speedup": headline.gain.predicted if headline.gain else None,
        "measured_speedup": headline.gain.speedup if headline.gain and headline.is_measured else None,
    }
    return SessionEnd(state, {**columns, **listed})


def failure_of(error: Exception, session_id: str) -> SessionEnd:
    """Errors of ASAP speak for themselves; of others only the log tells more, since they may hold secrets."""
    if isinstance(error, InputError):
        return _failed("input", str(error), error.path)
    if isinstance(error, InfeasibleError):
        return _failed("infeasible", str(error))
    if isinstance(error, AsapError):
        return _failed("failed", str(error))
    message = f"an unexpected {type(error).__name__}; the server's log has it under session {session_id}"
    return _failed("unexpected", message)


def _failed(kind: str, message: str, field: str | None = None) -> SessionEnd:
    failure = SessionFailure(kind=kind, message=message, field=field)
    return SessionEnd(FAILED, {"error": failure.model_dump()})
