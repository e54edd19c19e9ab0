"""Runs a scheduled night in a worker: claimed, reviewed, re-optimized through the queue, delivered."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from graph.report import PendingDecision, Report
from service.access.auth import LOCAL_ID, Caller
from service.access.store import has_keys
from service.db.engine import retry_transaction
from service.db.outages import is_outage
from service.errors import FencedError, HandBackError, NotFoundError
from service.jobs.engine import Jobs
from service.jobs.loop import Loop
from service.jobs.model import BUSY, COMPLETED, FAILED
from service.jobs.worker import WorkerDeps
from service.schedules.calendar import ScheduleSpec
from service.schedules.config import Policy, parse
from service.schedules.deliver import ReportSender
from service.schedules.dispatch import delete_old_runs, night_queue, tick
from service.schedules.model import RunRow
from service.schedules.reoptimize import SessionAnswer
from service.schedules.review import NightContext, run_night
from service.schedules.store import get_schedule, set_run
from service.sessions.dispatch import session_queue
from service.sessions.model import WAITING, SessionCreate, SessionRow
from service.sessions.usecases import Sessions
from service.traces.uploads import Uploads
from tools.errors import AsapError
from tools.nightly.night import StatedWorkload
from tools.nightly.result import NightReport
from tools.scenario.fields import build

POLL_S = 0.5
PATIENCE_S = 300.0
"""Beyond what a session may take: it may have to wait in the queue."""
TICK_S = 5.0
NIGHT_POLL_S = 0.5
NIGHTS_PER_WORKER = 2
"""Most of the time they wait for sessions."""
HOUR_S, DAY_S = 3600.0, 86_400.0
KEPT_S = 180 * DAY_S
"""How long runs are kept; longer than anything that is planned again after a clock was set back."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueuedReoptimizer:
    """Submits sessions in the name of the schedule's owner, and waits for them."""

    sessions: Sessions
    owner: Caller
    schedule: str
    run_id: str
    policy: Policy
    check: Callable[[], None]
    """Raises HandBackError if the night must be handed back."""

    def run(self, workload: str, request: StatedWorkload) -> SessionAnswer:
        """Idempotent: a repeated night gets its session again, even if there is a newer profile by then."""
        key = f"night/{self.run_id}/{workload}"
        row = self.sessions.find_by_key(self.owner, key)
        if row is None:
            labels = {"schedule": self.schedule, "workload": workload, "night": self.run_id}
            try:
                body = {**request, "labels": labels, "budget": self.policy.budget}
                row = self.sessions.submit(self.owner, build(SessionCreate, body), key)
            except AsapError as error:
                return SessionAnswer(failure=str(error))
        ends_at = time.monotonic() + self.sessions.settings.session_s + PATIENCE_S
        while row.state in BUSY and time.monotonic() < ends_at:
            self.check()
            time.sleep(POLL_S)
            row = self.sessions.get(self.owner, row.id)
        return _answer(row)

    def look(self, session_id: str) -> SessionAnswer | None:
        try:
            return _answer(self.sessions.get(self.owner, session_id))
        except NotFoundError:
            return None


def _answer(row: SessionRow) -> SessionAnswer:
    if row.state == COMPLETED:
        return SessionAnswer(report=Report.model_validate(row.report), session_id=row.id)
    if row.state == WAITING:
        asked = PendingDecision.model_validate(row.waiting_for)
        return SessionAnswer(waiting_for=asked.proposals, session_id=row.id)
    if row.state in BUSY:
        return SessionAnswer(session_id=row.id, is_busy=True)
    message = row.error.message if row.error else f"session {row.id} was {row.state}"
    return SessionAnswer(session_id=row.id, failure=message)


def run_scheduled_night(deps: WorkerDeps, sessions: Sessions, row: RunRow) -> None:
    """Until the run has ended. Its failures are stored; only what stops this worker is raised."""
    try:
        _run(deps, sessions, row)
    except (FencedError, HandBackError):
        raise
    except Exception as error:
        if is_outage(error):
            raise
        _log.exception("night %s failed", row.id)
        # Errors of ASAP explain themselves; others may hold secrets, and only the log has them.
        unexpected = f"unexpected {type(error).__name__}; see the log"
        reason = str(error) if isinstance(error, AsapError) else unexpected
        retry_transaction(deps.database, lambda conn: set_run(conn, row, state=FAILED, reason=reason))


def _run(deps: WorkerDeps, sessions: Sessions, row: RunRow) -> None:
    spec = parse(ScheduleSpec, row.definition or {})
    report = row.report
    if report is None:
        report = made = _report(deps, sessions, row, spec)
        retry_transaction(deps.database, lambda conn: set_run(conn, row, report=made, outcome=made.outcome))
    deps.check()
    base = deps.settings.public_url
    link = f"{base.rstrip('/')}/v1/schedules/{row.schedule_id}/runs/{row.id}/report" if base else None
    sender = ReportSender(deps.settings, row.id, link)
    deliveries = sender.send(report, spec.recipients, row.deliveries or ())
    failed = next((delivery for delivery in deliveries if not delivery.ok), None)
    reason = f"not delivered to {failed.to} ({failed.answer})" if failed else None
    ended = {"state": COMPLETED, "deliveries": deliveries, "reason": reason}
    retry_transaction(deps.database, lambda conn: set_run(conn, row, **ended))


def _report(deps: WorkerDeps, sessions: Sessions, row: RunRow, spec: ScheduleSpec) -> NightReport:
    with deps.database.read() as conn:
        try:
            schedule = get_schedule(conn, row.tenant, row.schedule_id)
        except NotFoundError:
            raise FencedError(f"the schedule of run {row.id} was removed") from None
        is_open = deps.settings.jwt_issuer is None and not has_keys(conn)
    roots = deps.settings.trace_roots
    if roots is None and not is_open:
        roots = ()
    # What the owner may read was checked when the schedule was added, and is again when it is read.
    id = LOCAL_ID if roots is None else f"schedule:{schedule.id}"
    owner = Caller(schedule.owner, row.tenant, frozenset({"operator"}), id=id)
    context = NightContext(
        deps.database,
        row.tenant,
        Path("/"),
        Uploads(deps.settings),
        QueuedReoptimizer(sessions, owner, schedule.name, row.id, spec, deps.check),
        row.id,
        roots=roots,
        check=deps.check,
    )
    return run_night(context, spec, schedule.name, row.planned_at, lambda _: deps.check())


def night_jobs(deps: WorkerDeps) -> Jobs[RunRow]:
    """Nights of schedules, for a worker to run beside sessions."""
    queue, submitted = night_queue(deps.database), session_queue(deps.database)
    deps.resources.callback(submitted.close)
    sessions = Sessions(deps.settings, deps.database, submitted)
    return Jobs(
        queue=queue,
        run=lambda row: run_scheduled_night(deps, sessions, row),
        per_worker=NIGHTS_PER_WORKER,
        per_partition=1,
        poll_s=NIGHT_POLL_S,
        loops=(
            Loop("schedules", TICK_S, lambda: tick(deps.database, queue)),
            Loop("old nights", HOUR_S, lambda: delete_old_runs(queue, KEPT_S)),
        ),
    )
