"""Sessions for the tests of the store, made in one line."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pydantic import JsonValue

from service.db.engine import Database
from service.jobs.model import deliveries
from service.sessions.dispatch import SESSIONS
from service.sessions.event_store import insert_events
from service.sessions.model import SessionRow, decisions
from service.sessions.store import check_claim, create_session, get_session, lock_session


def make(database: Database, **fields: Any) -> str:  # noqa: ANN401 - of SessionRow
    with database.begin() as conn:
        return create_session(conn, SessionRow(**{"request": {"model": {}}, **fields}))[0].id


def read(database: Database, id: str, tenant: str = "") -> SessionRow:
    with database.read() as conn:
        return get_session(conn, tenant, id)


def take(database: Database, id: str, worker: str = "w1", dispatch_no: int = 1) -> SessionRow:
    with database.begin() as conn:
        held = SESSIONS.claim(conn, id, worker, dispatch_no)
    assert held is not None
    return held


def append_event(
    conn: sa.Connection, id: str, event: Mapping[str, JsonValue], fence: int | None = None
) -> int | None:
    """The event's number, or None if its key exists already; with a fence as its worker does."""
    if fence is None:
        lock_session(conn, id)
    else:
        check_claim(conn, id, fence)
    return next(iter(insert_events(conn, id, [event])), None)


def list_decisions(conn: sa.Connection, session_id: str) -> list[dict[str, Any]]:
    query = sa.select(decisions.c.content, decisions.c.at).where(decisions.c.session_id == session_id)
    return [{**row.content, "at": row.at} for row in conn.execute(query.order_by(decisions.c.dispatch_no))]


def list_deliveries(conn: sa.Connection, session_id: str) -> list[sa.Row[Any]]:
    query = sa.select(deliveries).where(deliveries.c.session_id == session_id)
    return list(conn.execute(query.order_by(deliveries.c.id)))
