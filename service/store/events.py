"""What happened in a session, numbered 1, 2, 3, ... whoever writes, so that a reader can resume anywhere."""

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from service.errors import CancelledError, FencedError, NotFoundError
from service.store.queries import insert_into
from service.store.rows import LISTED_COLUMNS, EventRow
from service.store.tables import events, sessions

OWN_COLUMNS = ("key", "at", "node", "kind")
MOST_EVENTS = 1000
_LOCKED = sa.select(*LISTED_COLUMNS).where(sessions.c.id == sa.bindparam("id")).with_for_update()
"""Without the request and the report: whoever writes an event needs neither."""
_NEXT = sa.func.coalesce(sa.func.max(events.c.seq), 0) + 1


def append_event(
    conn: sa.Connection, id: str, event: Mapping[str, Any], fence: int | None = None
) -> int | None:
    """The event's number, or nothing where its key is already there: telling an event twice is harmless.

    With a fence it is the worker who writes: FencedError where another has the session by now, CancelledError
    where a person asked it to stop.
    """
    if fence is None:
        lock_session(conn, id)
    else:
        check_claim(conn, id, fence)
    return insert_event(conn, id, event)


def check_claim(conn: sa.Connection, id: str, fence: int) -> None:
    """Locks the session for the worker that has it, and raises where that should go on no longer."""
    if lock_session(conn, id, fence).cancel_requested:
        raise CancelledError(f"session {id} was asked to stop")


def lock_session(conn: sa.Connection, id: str, fence: int | None = None) -> sa.Row[Any]:
    """Nobody else writes about this session until the transaction ends (SQLite has one writer anyway)."""
    held = conn.execute(_LOCKED, {"id": id}).one_or_none()
    if held is None:
        raise FencedError(f"session {id} is deleted") if fence is not None else NotFoundError("session", id)
    if fence is not None and held.fence != fence:
        raise FencedError(f"session {id} was taken over by {held.worker}")
    return held


def insert_event(conn: sa.Connection, id: str, event: Mapping[str, Any]) -> int | None:
    """The caller holds the lock, so that the next number is free. One round trip: a session tells 50."""
    content = {name: value for name, value in event.items() if name not in OWN_COLUMNS}
    own = {"key": event["key"], "at": event.get("at", time.time()), "node": event["node"]}
    values = {"session_id": id, **own, "kind": event["kind"], "content": content}
    given = [sa.literal(value, events.c[name].type) for name, value in values.items()]
    numbered = sa.select(*given, _NEXT).where(events.c.session_id == id)
    insert = insert_into(conn, events)
    new = insert.from_select([*values, "seq"], numbered).on_conflict_do_nothing(
        index_elements=["session_id", "key"]
    )
    return conn.execute(new.returning(events.c.seq)).scalar()


def next_seq(conn: sa.Connection, id: str) -> int:
    return int(conn.execute(sa.select(_NEXT).where(events.c.session_id == id)).scalar_one())


def events_after(conn: sa.Connection, id: str, seq: int, limit: int = MOST_EVENTS) -> list[EventRow]:
    """In order. The caller has checked that the session is the tenant's."""
    columns = [events.c[name] for name in EventRow.__dataclass_fields__]
    query = sa.select(*columns).where(events.c.session_id == id, events.c.seq > seq)
    found = conn.execute(query.order_by(events.c.seq).limit(limit))
    return [EventRow(**row._mapping) for row in found]
