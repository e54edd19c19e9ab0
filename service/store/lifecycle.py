"""How a session moves: claimed by a worker, ended, cancelled, retried, decided upon.

Every move locks the session's row, tells an event of kind "state" and, where the move is the last one, books
the webhook, all in the caller's transaction.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.errors import ConflictError
from service.store.decisions import add_decision
from service.store.deliveries import book_delivery
from service.store.events import insert_event, lock_session, next_seq
from service.store.rows import Data, SessionRow
from service.store.sessions import get_session
from service.store.states import BUSY, CANCELLED, COMPLETED, FAILED, QUEUED, RUNNING, TERMINAL, WAITING
from service.store.tables import sessions

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
