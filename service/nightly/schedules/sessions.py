"""Re-optimizes through the service's own queue: the session is seen, cancelled and decided like any other."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy as sa

from graph.request import parse_request
from service.errors import NotFoundError
from service.nightly.definition import Policy
from service.nightly.reoptimize import Answer, Data
from service.store.database import Database
from service.store.rows import SessionRow
from service.store.sessions import NewSession, create_session, get_session
from service.store.states import BUSY, COMPLETED, WAITING
from service.store.tables import sessions
from service.work.queue import Queue
from tools.errors import AsapError
from tools.scenario import parse_scenario

POLL_S = 0.5
PATIENCE_S = 300.0
"""Beyond what a session may take: it may have to wait for its turn."""


@dataclass(frozen=True)
class ThroughQueue:
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

    def run(self, workload: str, request: Data) -> Answer:
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
        """What an earlier leg of this night began."""
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

    def _new(self, workload: str, request: Data) -> NewSession:
        parsed = parse_request(request, self.tenant or None)
        scenario = parse_scenario(parsed.scenario, need_plan=False)
        budget = self.policy.budget
        return NewSession(
            request=request,
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
            return Answer(report=row.report, session_id=row.id)
        if row.state == WAITING:
            return Answer(waiting_for=row.waiting_for, session_id=row.id)
        if row.state in BUSY:
            return Answer(session_id=row.id, is_busy=True)
        message = (row.error or {}).get("message") or f"session {row.id} was {row.state}"
        return Answer(session_id=row.id, failure=str(message))
