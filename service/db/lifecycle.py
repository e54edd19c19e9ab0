"""The state machine of a session: claim, fence, state changes, decisions, retry, cancel; and worker
heartbeats.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.db.engine import insert_into
from service.db.models import (
    BUSY,
    CANCELLED,
    COMPLETED,
    FAILED,
    QUEUED,
    RUNNING,
    TERMINAL,
    WAITING,
    Data,
    SessionRow,
    decisions,
    new_id,
    sessions,
    workers,
)
from service.db.outbox import book_delivery
from service.db.sessions import get_session, insert_event, lock_session, next_seq
from service.errors import ConflictError


@dataclass(frozen=True)
class WorkerRow:
    id: str
    host: str
    pid: int
    started_at: float
    heard_at: float


def now_s(conn: sa.Connection) -> sa.ColumnElement[float]:
    """The database's clock."""
    if conn.dialect.name == "postgresql":
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double)
    return (sa.func.julianday("now") - 2440587.5) * 86400.0


def beat(conn: sa.Connection, id: str, host: str, pid: int) -> None:
    """I live."""
    insert = insert_into(conn, workers)
    now = now_s(conn)
    row = insert.values(id=id, host=host, pid=pid, started_at=now, heard_at=now)
    conn.execute(row.on_conflict_do_update(index_elements=["id"], set_={"heard_at": now}))


def leave(conn: sa.Connection, id: str) -> None:
    """I stop: what I still hold may be taken over at once."""
    conn.execute(workers.delete().where(workers.c.id == id))


def list_living(conn: sa.Connection, lease_s: float) -> list[WorkerRow]:
    query = sa.select(workers).where(workers.c.heard_at > now_s(conn) - lease_s)
    return [WorkerRow(**row._mapping) for row in conn.execute(query.order_by(workers.c.id))]


def forget_dead(conn: sa.Connection, silent_s: float) -> None:
    """Rows of workers that have been silent for so long that nothing of theirs is left."""
    conn.execute(workers.delete().where(workers.c.heard_at <= now_s(conn) - silent_s))


def add_decision(
    conn: sa.Connection, held: sa.Row[Any], decision: Mapping[str, Any], by: str, refuse: bool
) -> bool:
    """False where it is known already. Refused, it raises; but what is known is never refused."""
    id = decision.get("id") or new_id()
    known = conn.execute(sa.select(decisions.c.session_id).where(decisions.c.id == id)).scalar()
    if known == held.id:
        return False
    if known is not None:
        raise ConflictError("this id belongs to another decision; send another, or none", field="id")
    if refuse:
        raise ConflictError(
            f"session {held.id} is {held.state}; decide when it waits for approval or is completed", "state"
        )
    content = {**decision, "id": id, "by": by}
    numbers = {"session_id": held.id, "attempt": held.attempt, "leg": held.leg + 1}
    conn.execute(decisions.insert().values(id=id, at=time.time(), by=by, content=content, **numbers))
    return True


def find_decision(conn: sa.Connection, session_id: str, attempt: int) -> Data | None:
    """The latest one of this attempt: the graph knows by its id whether it has acted on it."""
    query = sa.select(decisions.c.content).where(
        decisions.c.session_id == session_id, decisions.c.attempt == attempt
    )
    return conn.execute(query.order_by(decisions.c.leg.desc()).limit(1)).scalar()


def list_decisions(conn: sa.Connection, session_id: str) -> list[Data]:
    query = sa.select(decisions.c.content, decisions.c.at).where(decisions.c.session_id == session_id)
    return [{**row.content, "at": row.at} for row in conn.execute(query.order_by(decisions.c.leg))]


MOST_CLAIMS = 25
GAVE_UP = {
    "kind": "gave_up",
    "message": f"{MOST_CLAIMS} workers began this session and none ended it; see their logs, then retry",
    "field": None,
}


@dataclass(frozen=True)
class Claim:
    """The right to write about a session until somebody claims it after us."""

    fence: int
    row: SessionRow


def claim(conn: sa.Connection, id: str, worker: str, leg: int) -> Claim | None:
    """Nothing where this leg is over: the session ended, waits for a person, or went on in a later leg."""
    held = conn.execute(sa.select(sessions).where(sessions.c.id == id).with_for_update()).one_or_none()
    if held is None or held.state not in BUSY or held.leg != leg:
        return None
    fence = held.fence + 1
    if held.claims >= MOST_CLAIMS:
        _move(conn, held, FAILED, fence=fence, error=GAVE_UP)
        return None
    _move(conn, held, RUNNING, worker=worker, fence=fence, claims=held.claims + 1)
    return Claim(fence, get_session(conn, held.tenant, id))


def set_state(conn: sa.Connection, id: str, state: str, fence: int | None = None, **columns: object) -> str:
    """To the state it has already: changes nothing, so that a lost answer to a commit may be repeated.

    Gives back the state it has now: nobody waits for a decision about what somebody wants to stop.
    """
    held = lock_session(conn, id, fence)
    if state == WAITING and held.cancel_requested:
        state, columns = CANCELLED, {}
    _move(conn, held, state, **columns)
    return state


def request_cancel(conn: sa.Connection, tenant: str, id: str) -> SessionRow:
    """At once where nobody runs it, else at its next event; a session that has ended cannot be cancelled."""
    row = get_session(conn, tenant, id, report=False)
    held = lock_session(conn, id)
    if held.state in TERMINAL and held.state != CANCELLED:
        raise ConflictError(f"session {id} is already {held.state}", field="state")
    if held.state == RUNNING:
        conn.execute(sessions.update().where(sessions.c.id == id).values(cancel_requested=True))
    elif held.state != CANCELLED:
        _move(conn, held, CANCELLED, fence=held.fence + 1)
    return get_session(conn, tenant, row.id)


def retry(conn: sa.Connection, tenant: str, id: str) -> SessionRow:
    """A new attempt from the start; the caller queues its leg in the same transaction."""
    get_session(conn, tenant, id)
    held = lock_session(conn, id)
    if held.state not in (FAILED, CANCELLED):
        raise ConflictError(
            f"session {id} is {held.state}; a failed or cancelled one can be retried", "state"
        )
    return _requeue(conn, held, attempt=held.attempt + 1, claims=0)


def decide(conn: sa.Connection, tenant: str, id: str, decision: Mapping[str, Any], by: str) -> SessionRow:
    """Keeps what a person decided (graph.decisions.parse_decision) and queues the leg that acts on it.

    The caller queues the leg in the same transaction. The same decision id again changes nothing.
    """
    get_session(conn, tenant, id)
    held = lock_session(conn, id)
    allowed = held.state in (WAITING, COMPLETED)
    if not add_decision(conn, held, decision, by, refuse=not allowed):
        return get_session(conn, tenant, id)
    return _requeue(conn, held, claims=0)


def next_leg(conn: sa.Connection, id: str, leg: int) -> SessionRow | None:
    """For a busy session whose workflow is lost or given back; nothing where it has gone on meanwhile.

    One that was asked to stop stops here: the worker that gives it back may not have heard of it.
    """
    held = conn.execute(sa.select(sessions).where(sessions.c.id == id).with_for_update()).one_or_none()
    if held is None or held.state not in BUSY or held.leg != leg:
        return None
    if held.cancel_requested:
        _move(conn, held, CANCELLED, fence=held.fence + 1)
        return None
    return _requeue(conn, held)


def _requeue(conn: sa.Connection, held: sa.Row[Any], **columns: object) -> SessionRow:
    cleared = {
        "cancel_requested": False,
        "finished_at": None,
        "error": None,
        "waiting_for": None,
        "worker": None,
    }
    numbers = {"leg": held.leg + 1, "fence": held.fence + 1, "queued_at": time.time()}
    _move(conn, held, QUEUED, **{**cleared, **numbers, **columns})
    return get_session(conn, held.tenant, held.id)


def _move(conn: sa.Connection, held: sa.Row[Any], state: str, **columns: object) -> None:
    now_s = time.time()
    moved = state != held.state
    values: Data = {"state": state, "updated_at": now_s, **columns}
    if moved and state == RUNNING and held.started_at is None:
        values["started_at"] = now_s
    if moved and state in TERMINAL:
        values["finished_at"] = now_s
    conn.execute(sessions.update().where(sessions.c.id == held.id).values(values))
    if moved:
        _tell(conn, held, state, now_s, columns)


def _tell(conn: sa.Connection, held: sa.Row[Any], state: str, now_s: float, columns: Data) -> None:
    """The number in the key is the event's own, so that a session may come to the same state twice."""
    told = {
        name: columns[name] for name in ("error", "bottleneck", "verdict", "speedup") if columns.get(name)
    }
    key = f"state/{next_seq(conn, held.id)}"
    event = {"key": key, "at": now_s, "node": "session", "kind": "state", "state": state, **told}
    insert_event(conn, held.id, event)
    if state in (*TERMINAL, WAITING) and held.webhook:
        book_delivery(conn, held, key, {"state": state, **told}, now_s)
