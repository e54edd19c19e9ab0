"""The state machine of a session: claim, fence, state changes, decisions, retry, cancel; and worker
heartbeats.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from pydantic import JsonValue

from service.db.engine import insert_into
from service.db.models import (
    BUSY,
    CANCELLED,
    COMPLETED,
    FAILED,
    QUEUED,
    RUNNING,
    SESSION_COLUMNS,
    TERMINAL,
    WAITING,
    SessionRow,
    decisions,
    new_id,
    sessions,
    workers,
)
from service.db.outbox import enqueue_webhook
from service.db.sessions import insert_events, lock_session, next_seq
from service.errors import ConflictError, NotFoundError
from service.strict_json import JsonObject


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


def heartbeat(conn: sa.Connection, id: str, host: str, pid: int) -> None:
    """This worker is alive."""
    insert = insert_into(conn, workers)
    now = now_s(conn)
    row = insert.values(id=id, host=host, pid=pid, started_at=now, heard_at=now)
    conn.execute(row.on_conflict_do_update(index_elements=["id"], set_={"heard_at": now}))


def leave(conn: sa.Connection, id: str) -> None:
    """This worker stops: what it still runs may be taken over at once."""
    conn.execute(workers.delete().where(workers.c.id == id))


def list_living(conn: sa.Connection, lease_s: float) -> list[WorkerRow]:
    query = sa.select(workers).where(workers.c.heard_at > now_s(conn) - lease_s)
    return [WorkerRow(**row._mapping) for row in conn.execute(query.order_by(workers.c.id))]


def delete_dead(conn: sa.Connection, silent_s: float) -> None:
    """Rows of workers that have not been heard from for this long."""
    conn.execute(workers.delete().where(workers.c.heard_at <= now_s(conn) - silent_s))


def _add_decision(
    conn: sa.Connection, row: SessionRow, decision: Mapping[str, JsonValue], by: str, refuse: bool
) -> bool:
    """False if it is stored already, which is never refused."""
    id = decision.get("id") or new_id()
    owner = conn.execute(sa.select(decisions.c.session_id).where(decisions.c.id == id)).scalar()
    if owner == row.id:
        return False
    if owner is not None:
        raise ConflictError("this id belongs to another decision; send another, or none", field="id")
    if refuse:
        raise ConflictError(
            f"session {row.id} is {row.state}; decide when it waits for approval or is completed", "state"
        )
    content = {**decision, "id": id, "by": by}
    numbers = {"session_id": row.id, "attempt": row.attempt, "dispatch_no": row.dispatch_no + 1}
    conn.execute(decisions.insert().values(id=id, at=time.time(), by=by, content=content, **numbers))
    return True


def find_decision(conn: sa.Connection, session_id: str, attempt: int) -> JsonObject | None:
    """The latest one of this attempt; the graph knows by its id whether it has acted on it."""
    query = sa.select(decisions.c.content).where(
        decisions.c.session_id == session_id, decisions.c.attempt == attempt
    )
    return conn.execute(query.order_by(decisions.c.dispatch_no.desc()).limit(1)).scalar()


def latest_decisions(conn: sa.Connection, session_ids: Sequence[str]) -> dict[str, JsonObject]:
    """The last decision about each session that has one."""
    query = sa.select(decisions.c.session_id, decisions.c.content).where(
        decisions.c.session_id.in_(session_ids)
    )
    return {row.session_id: row.content for row in conn.execute(query.order_by(decisions.c.at))}


MAX_CLAIMS = 25
GAVE_UP: JsonObject = {
    "kind": "gave_up",
    "message": f"{MAX_CLAIMS} workers began this session and none finished it; see their logs, then retry",
    "field": None,
}


def claim(conn: sa.Connection, id: str, worker: str, dispatch_no: int) -> SessionRow | None:
    """The right to write about the session under `row.fence`, until another worker claims it.

    None if this dispatch is over: the session ended, waits for a person, or has a later dispatch.
    """
    row = _lock_busy(conn, id, dispatch_no)
    if row is None:
        return None
    fence = row.fence + 1
    if row.claims >= MAX_CLAIMS:
        _move(conn, row, FAILED, fence=fence, error=GAVE_UP)
        return None
    return _move(conn, row, RUNNING, worker=worker, fence=fence, claims=row.claims + 1)


def set_state(
    conn: sa.Connection, id: str, state: str, fence: int | None = None, **columns: JsonValue
) -> str:
    """Idempotent, so that it may be repeated if the answer to a commit was lost.

    Returns the state the session has now: one that is to be cancelled does not wait for a decision.
    """
    row = lock_session(conn, id, fence)
    if state == WAITING and row.cancel_requested:
        state, columns = CANCELLED, {}
    _move(conn, row, state, **columns)
    return state


def request_cancel(conn: sa.Connection, row: SessionRow) -> SessionRow:
    """At once if no worker runs it, else at its next event. The row is locked (`lock_session`)."""
    if row.state == CANCELLED or row.cancel_requested:
        return row
    if row.state in TERMINAL:
        raise ConflictError(f"session {row.id} is already {row.state}", field="state")
    if row.state != RUNNING:
        return _move(conn, row, CANCELLED, fence=row.fence + 1)
    conn.execute(sessions.update().where(sessions.c.id == row.id).values(cancel_requested=True))
    return replace(row, cancel_requested=True)


def retry(conn: sa.Connection, row: SessionRow) -> SessionRow:
    """A new attempt from the start; the caller enqueues it in the same transaction. The row is locked."""
    if row.state not in (FAILED, CANCELLED):
        allowed = "a failed or cancelled session can be retried"
        raise ConflictError(f"session {row.id} is {row.state}; {allowed}", "state")
    return _requeue(conn, row, attempt=row.attempt + 1, claims=0)


def decide(conn: sa.Connection, row: SessionRow, decision: Mapping[str, JsonValue], by: str) -> SessionRow:
    """Stores a person's decision (graph.request.parse_decision); the row is locked.

    The caller enqueues the dispatch that acts on it in the same transaction. Idempotent by the decision's id.
    """
    allowed = row.state in (WAITING, COMPLETED)
    if not _add_decision(conn, row, decision, by, refuse=not allowed):
        return row
    return _requeue(conn, row, claims=0)


def next_dispatch(conn: sa.Connection, id: str, dispatch_no: int) -> SessionRow | None:
    """For a busy session whose workflow is lost or handed back; None if it has gone on meanwhile.

    One that is to be cancelled is cancelled here: the worker that hands it back may not know.
    """
    row = _lock_busy(conn, id, dispatch_no)
    if row is None:
        return None
    if row.cancel_requested:
        _move(conn, row, CANCELLED, fence=row.fence + 1)
        return None
    return _requeue(conn, row)


def list_quiet(
    jobs: sa.Table, conn: sa.Connection, before_s: float | sa.ColumnElement[float], after: str
) -> list[tuple[str, int]]:
    """Busy jobs (sessions or night runs) without a write since then: id and dispatch number."""
    is_quiet = jobs.c.state.in_(BUSY), jobs.c.updated_at < before_s, jobs.c.id > after
    query = sa.select(jobs.c.id, jobs.c.dispatch_no).where(*is_quiet)
    return [(id, number) for id, number in conn.execute(query.order_by(jobs.c.id).limit(500))]


def _lock_busy(conn: sa.Connection, id: str, dispatch_no: int) -> SessionRow | None:
    try:
        row = lock_session(conn, id)
    except NotFoundError:
        return None
    return row if row.state in BUSY and row.dispatch_no == dispatch_no else None


def _requeue(conn: sa.Connection, row: SessionRow, **columns: JsonValue) -> SessionRow:
    cleared: JsonObject = {
        "cancel_requested": False,
        "finished_at": None,
        "error": None,
        "waiting_for": None,
        "worker": None,
    }
    numbers: JsonObject = {
        "dispatch_no": row.dispatch_no + 1,
        "fence": row.fence + 1,
        "queued_at": time.time(),
    }
    return _move(conn, row, QUEUED, **{**cleared, **numbers, **columns})


def _move(conn: sa.Connection, row: SessionRow, state: str, **columns: JsonValue) -> SessionRow:
    """The session as it is now, without the report."""
    now_s = time.time()
    moved = state != row.state
    values = {"state": state, "updated_at": now_s, **columns}
    if moved and state == RUNNING and row.started_at is None:
        values["started_at"] = now_s
    if moved and state in TERMINAL:
        values["finished_at"] = now_s
    update = sessions.update().where(sessions.c.id == row.id).values(values)
    after = SessionRow(*conn.execute(update.returning(*SESSION_COLUMNS[:-1])).one())
    if moved:
        _emit_state(conn, row, state, now_s, columns)
    return after


def _emit_state(conn: sa.Connection, row: SessionRow, state: str, now_s: float, columns: JsonObject) -> None:
    """The key holds the event's own number, so that a session may come to the same state twice."""
    summary: JsonObject = {
        name: columns[name] for name in ("error", "bottleneck", "verdict", "speedup") if columns.get(name)
    }
    key = f"state/{next_seq(conn, row.id)}"
    event: Mapping[str, JsonValue] = {
        "key": key,
        "at": now_s,
        "node": "session",
        "kind": "state",
        "state": state,
        **summary,
    }
    insert_events(conn, row.id, [event])
    if state in (*TERMINAL, WAITING) and row.webhook:
        enqueue_webhook(conn, row, key, {"state": state, **summary}, now_s)
