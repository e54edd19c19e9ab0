"""Runs a scheduled night in a worker: claimed, reviewed, re-optimized through the queue, delivered."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from dbos import DBOS

from graph.report import Report
from graph.request import parse_request
from service.db.engine import Database, insist, is_outage
from service.db.models import BUSY, COMPLETED, WAITING, SessionRow, sessions
from service.db.schedules import FAILED, RunRow, claim_run, get_schedule, next_dispatch, set_run
from service.db.sessions import NewSession, create_session, get_session
from service.errors import FencedError, NotFoundError
from service.nightly.config import Policy, parse
from service.nightly.deliver import ReportSender
from service.nightly.dispatch import QUEUE, WORKFLOW, NightQueue, tick
from service.nightly.reoptimize import Answer, WaitingProposal
from service.nightly.review import InterruptedNightError, NightContext, run_night
from service.nightly.schedule import ScheduleSpec
from service.settings import Settings
from service.traces import Uploads
from service.worker.jobs import Lease, Loop, Queue
from service.worker.run_session import Shop
from tools.errors import AsapError
from tools.nightly.night import Described
from tools.nightly.result import NightReport
from tools.scenario import parse_scenario

POLL_S = 0.5
PATIENCE_S = 300.0
"""Beyond what a session may take: it may have to wait for its turn."""


@dataclass(frozen=True)
class QueuedReoptimizer:
    database: Database
    queue: Queue
    tenant: str
    owner: str
    schedule: str
    run_id: str
    policy: Policy
    session_s: float
    check: Callable[[], None]
    """Raises where the night must be handed back."""

    def run(self, workload: str, request: Described) -> Answer:
        """The same session again where a night is repeated, even if a newer profile is there by then."""
        row = self._find(workload)
        if row is None:
            try:
                new = self._new(workload, request)
            except AsapError as error:
                return Answer(failure=str(error))
            row = self._create(new)
        return self._answer(self._wait(row))

    def _find(self, workload: str) -> SessionRow | None:
        """What an earlier dispatch_no of this night began."""
        is_own = sessions.c.tenant == self.tenant, sessions.c.idempotency_key == self._key(workload)
        with self.database.read() as conn:
            id = conn.scalar(sa.select(sessions.c.id).where(*is_own))
            return get_session(conn, self.tenant, id) if id else None

    def _create(self, new: NewSession) -> SessionRow:
        with self.database.begin() as conn:
            row, created = create_session(conn, new)
            if created:
                self.queue.enqueue(conn, row)
        return row

    def _key(self, workload: str) -> str:
        return f"night/{self.run_id}/{workload}"

    def look(self, session_id: str) -> Answer | None:
        with self.database.read() as conn:
            try:
                return self._answer(get_session(conn, self.tenant, session_id))
            except NotFoundError:
                return None

    def _new(self, workload: str, request: Described) -> NewSession:
        parsed = parse_request(request, self.tenant or None)
        scenario = parse_scenario(parsed.scenario, need_plan=False)
        budget = self.policy.budget
        return NewSession(
            request=dict(request),
            tenant=self.tenant,
            owner=self.owner,
            mode=parsed.mode,
            approval=parsed.approval,
            labels={"schedule": self.schedule, "workload": workload, "night": self.run_id},
            model=scenario.model.name or None,
            device=scenario.cluster.device,
            num_devices=scenario.cluster.num_devices,
            budget=budget.model_dump(exclude_none=True) if budget else None,
            idempotency_key=self._key(workload),
        )

    def _wait(self, row: SessionRow) -> SessionRow:
        ends_at = time.monotonic() + self.session_s + PATIENCE_S
        while row.state in BUSY and time.monotonic() < ends_at:
            self.check()
            time.sleep(POLL_S)
            with self.database.read() as conn:
                row = get_session(conn, self.tenant, row.id)
        return row

    def _answer(self, row: SessionRow) -> Answer:
        if row.state == COMPLETED:
            return Answer(report=Report.model_validate(row.report), session_id=row.id)
        if row.state == WAITING:
            proposals = (row.waiting_for or {}).get("proposals") or []
            waiting_for = [WaitingProposal.model_validate(proposal) for proposal in proposals]
            return Answer(waiting_for=waiting_for, session_id=row.id)
        if row.state in BUSY:
            return Answer(session_id=row.id, is_busy=True)
        message = (row.error or {}).get("message") or f"session {row.id} was {row.state}"
        return Answer(session_id=row.id, failure=str(message))


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NightShop:
    """What every night of a worker works with."""

    settings: Settings
    database: Database
    nights: NightQueue
    sessions: Queue
    uploads: Uploads
    lease: Lease
    must_stop: Callable[[], bool]

    def check(self) -> None:
        if self.must_stop():
            raise InterruptedNightError("this worker stops")
        if not self.lease.is_held():
            raise InterruptedNightError("this worker has lost its lease")


def run_dispatch(shop: NightShop, run_id: str, dispatch_no: int) -> None:
    """Returns when the run has ended, or when another has it; never raises for its failures."""
    row = insist(shop.database, lambda conn: claim_run(conn, run_id, shop.lease.worker, dispatch_no))
    if row is None:
        return
    try:
        _run(shop, row)
    except FencedError as error:
        _log.warning("stopped: %s", error)
    except InterruptedNightError as error:
        _hand_back(shop, row, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, the run must end with a reason
        if is_outage(error):
            _hand_back(shop, row, f"the database is away: {error}")
            return
        _log.exception("night %s failed", run_id)
        _fail(shop, row, error)


def _hand_back(shop: NightShop, row: RunRow, reason: str) -> None:
    """A new dispatch_no does what is left, unless somebody has taken the night over already."""
    _log.warning("night %s handed back: %s", row.id, reason)

    def give(conn: sa.Connection) -> None:
        set_run(conn, row)
        run = next_dispatch(conn, row.id, row.dispatch_no)
        if run is not None:
            shop.nights.enqueue(conn, run)

    try:
        insist(shop.database, give)
    except FencedError as error:
        _log.info("nothing to hand back: %s", error)


def _fail(shop: NightShop, row: RunRow, error: Exception) -> None:
    """Errors of ASAP speak for themselves; of others only the log tells more."""
    reason = str(error) if isinstance(error, AsapError) else f"unexpected {type(error).__name__}; see the log"
    try:
        insist(shop.database, lambda conn: set_run(conn, row, state=FAILED, reason=reason))
    except FencedError as fenced:
        _log.warning("stopped: %s", fenced)


def _run(shop: NightShop, row: RunRow) -> None:
    spec = parse(ScheduleSpec, row.definition or {})
    report = row.report or _report(shop, row, spec)
    if row.report is None:
        insist(shop.database, lambda conn: set_run(conn, row, report=report, outcome=report.outcome))
    shop.check()
    told = _sender(shop, row).send(report, spec.recipients, row.deliveries or ())
    undelivered = [one for one in told if not one.ok]
    reason = f"not delivered to {undelivered[0].to} ({undelivered[0].answer})" if undelivered else None
    ended = {"state": COMPLETED, "deliveries": told, "reason": reason}
    insist(shop.database, lambda conn: set_run(conn, row, **ended))


def _report(shop: NightShop, row: RunRow, spec: ScheduleSpec) -> NightReport:
    with shop.database.read() as conn:
        try:
            schedule = get_schedule(conn, row.tenant, row.schedule_id)
        except NotFoundError:
            raise FencedError(f"the schedule of run {row.id} was removed") from None
    again = QueuedReoptimizer(
        shop.database,
        shop.sessions,
        row.tenant,
        schedule.owner,
        schedule.name,
        row.id,
        spec,
        shop.settings.session_s,
        shop.check,
    )
    context = NightContext(shop.database, row.tenant, Path("/"), shop.uploads, again, row.id)
    return run_night(context, spec, schedule.name, row.planned_at, lambda _: shop.check())


def _sender(shop: NightShop, row: RunRow) -> ReportSender:
    base = shop.settings.public_url
    link = f"{base.rstrip('/')}/v1/schedules/{row.schedule_id}/runs/{row.id}/report" if base else None
    return ReportSender(shop.settings, row.id, link)


TICK_S = 5.0
HOUR_S, DAY_S = 3600.0, 86_400.0
KEPT_S = 180 * DAY_S
"""Runs with their reports; longer than anything that is planned again after a clock was set back."""
Note = Callable[[str, bool], None]
"""Told when a night begins (True) and ends in this worker."""


class Nights:
    """`register` before DBOS is launched, `loops` after it."""

    name = QUEUE

    def __init__(self, settings: Settings, shop: Shop, tick_s: float = TICK_S) -> None:
        self._queue = NightQueue(shop.database)
        self._database, self._lease_s, self._tick_s = shop.database, settings.lease_s, tick_s
        self._shop = NightShop(
            settings, shop.database, self._queue, shop.queue, shop.uploads, shop.lease, shop.must_stop
        )

    def register(self, note: Note) -> None:
        def run_night(run_id: str, dispatch_no: int) -> None:
            note(run_id, True)
            try:
                run_dispatch(self._shop, run_id, dispatch_no)
            finally:
                note(run_id, False)

        # Our own limit on claims replaces DBOS's on recoveries.
        DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)(run_night)

    def loops(self) -> list[Loop]:
        self._queue.set_limits()
        return [
            Loop("schedules", self._tick_s, lambda: tick(self._database, self._queue)),
            Loop("nights", self._lease_s, self._look_after),
            Loop("old nights", HOUR_S, lambda: self._queue.forget_old(KEPT_S)),
        ]

    def _look_after(self) -> None:
        self._queue.take_over(self._lease_s)
        self._queue.reconcile(self._lease_s)

    def close(self) -> None:
        self._queue.close()
