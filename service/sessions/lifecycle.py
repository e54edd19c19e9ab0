"""The state machine of a session: state changes with their events and webhooks, decisions, retry, cancel."""

import time
from collections.abc import Sequence

import sqlalchemy as sa
from pydantic import JsonValue

from graph.request import Decision, parse_decision
from service.db.ids import new_id
from service.errors import ConflictError
from service.jobs.claims import dispatch_columns, times_of
from service.jobs.model import CANCELLED, COMPLETED, FAILED, QUEUED, RUNNING, TERMINAL
from service.jobs.outbox import enqueue_webhook
from service.sessions.event_store import insert_state
from service.sessions.model import WAITING, SessionRow, decisions, sessions
from service.sessions.store import ONE_WITHOUT_REPORT, lock_session, read_row
from service.strict_json import JsonObject

TOLD = ("error", "bottleneck", "verdict", "speedup")
"""Columns that the event of a change of state repeats."""


def move_session(conn: sa.Connection, row: SessionRow, state: str, **columns: JsonValue) -> SessionRow:
    """The session as it is now, without the report; a change of state is an event, and perhaps a webhook.

    One that is queued again begins anew: what the last run ended with is cleared.
    """
    cleared: JsonObject = {}
    if state == QUEUED:
        ended = {"finished_at": None, "error": None, "waiting_for": None}
        cleared = {"cancel_requested": False, "queued_at": time.time(), **ended}
    values = {"state": state, **cleared, **times_of(row, state), **columns}
    update = sessions.update().where(sessions.c.id == row.id).values(values)
    after = read_row(conn.execute(update.returning(*ONE_WITHOUT_REPORT)).one())
    if state != row.state:
        told: JsonObject = {name: columns[name] for name in TOLD if columns.get(name)}
        key = insert_state(conn, row.id, after.updated_at, {"state": state, **told})
        if state in (*TERMINAL, WAITING) and row.webhook:
            told |= {"event": key, "at": after.updated_at, "labels": {**row.labels}, "state": state}
            enqueue_webhook(conn, row.tenant, row.id, row.webhook, **told)
    return after


def set_state(
    conn: sa.Connection, id: str, state: str, fence: int | None = None, **columns: JsonValue
) -> str:
    """Idempotent, so that it may be repeated if the answer to a commit was lost.

    Returns the state the session has now: one that is to be cancelled does not wait for a decision.
    """
    row = lock_session(conn, id, fence)
    if state == WAITING and row.cancel_requested:
        state, columns = CANCELLED, {}
    move_session(conn, row, state, **columns)
    return state


def request_cancel(conn: sa.Connection, row: SessionRow) -> SessionRow:
    """At once if no worker runs it, else at its next event. The row is locked (`lock_session`)."""
    if row.state == CANCELLED or row.cancel_requested:
        return row
    if row.state in TERMINAL:
        raise ConflictError(f"session {row.id} is already {row.state}", path="state")
    if row.state != RUNNING:
        return move_session(conn, row, CANCELLED, fence=row.fence + 1)
    conn.execute(sessions.update().where(sessions.c.id == row.id).values(cancel_requested=True))
    return row.model_copy(update={"cancel_requested": True})


def retry(conn: sa.Connection, row: SessionRow) -> SessionRow:
    """A new attempt from the start; the caller enqueues it in the same transaction. The row is locked."""
    if row.state not in (FAILED, CANCELLED):
        allowed = "a failed or cancelled session can be retried"
        raise ConflictError(f"session {row.id} is {row.state}; {allowed}", "state")
    return move_session(conn, row, QUEUED, **dispatch_columns(row), claims=0, attempt=row.attempt + 1)


def decide(conn: sa.Connection, row: SessionRow, decision: Decision) -> SessionRow:
    """Stores a person's decision; the row is locked.

    The caller enqueues the dispatch that acts on it in the same transaction. Idempotent by the decision's
    id: one that is stored already changes nothing, and is never refused.
    """
    id = decision.id or new_id()
    owner = conn.execute(sa.select(decisions.c.session_id).where(decisions.c.id == id)).scalar()
    if owner == row.id:
        return row
    if owner is not None:
        raise ConflictError("this id belongs to another decision; send another, or none", path="id")
    if row.state not in (WAITING, COMPLETED):
        raise ConflictError(
            f"session {row.id} is {row.state}; decide when it waits for approval or is completed", "state"
        )
    # A completed session's plans are computed again: only what this cost model made is confirmed.
    kept = sa.select(sessions.c.report).where(sessions.c.id == row.id)
    report = conn.scalar(kept) if row.state == COMPLETED else None
    if report and report.get("scenario") is None:
        rule = "another cost model of asap made it, whose numbers this one does not confirm; submit it again"
        raise ConflictError(f"session {row.id} can be read, not decided on: {rule}", "state")
    content = decision.model_copy(update={"id": id}).model_dump(mode="json")
    numbers = {"session_id": row.id, "attempt": row.attempt, "dispatch_no": row.dispatch_no + 1}
    by = decision.by or ""
    conn.execute(decisions.insert().values(id=id, at=time.time(), by=by, content=content, **numbers))
    return move_session(conn, row, QUEUED, **dispatch_columns(row), claims=0)


def find_decision(conn: sa.Connection, session_id: str, attempt: int) -> Decision | None:
    """The latest one of this attempt; the graph knows by its id whether it has acted on it."""
    c = decisions.c
    query = sa.select(c.content).where(c.session_id == session_id, c.attempt == attempt)
    content = conn.execute(query.order_by(c.dispatch_no.desc()).limit(1)).scalar()
    return None if content is None else parse_decision(content)


def latest_decisions(conn: sa.Connection, session_ids: Sequence[str]) -> dict[str, Decision]:
    """The last decision about each session that has one; checked when it was made."""
    c = decisions.c
    query = sa.select(c.session_id, c.content).where(c.session_id.in_(session_ids)).order_by(c.at)
    return {row.session_id: Decision.model_construct(**row.content) for row in conn.execute(query)}
