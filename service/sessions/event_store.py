"""The events of sessions: appended under the session's lock, numbered without a gap, each key once."""

import time
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from pydantic import JsonValue

from service.errors import NotFoundError
from service.jobs.model import TERMINAL
from service.sessions.model import EventRow, events, sessions
from service.strict_json import JsonObject

MAX_EVENTS = 1000
SESSIONS_AT_ONCE = 500
"""In one query."""
ENDED = 2**63
"""As the number of a last event: above any that a client may have seen."""
EVENT_COLUMNS = tuple(events.c[name] for name in EventRow.model_fields)
EVENT_FIELDS = ("key", "at", "node", "kind")
"""Columns of their own; the rest of an event is its content."""
_NEWEST_AND_STORED = sa.select(events.c.seq, events.c.key).where(
    events.c.session_id == sa.bindparam("id"),
    sa.or_(
        events.c.key.in_(sa.bindparam("keys", expanding=True)),
        events.c.seq
        == sa.select(sa.func.max(events.c.seq))
        .where(events.c.session_id == sa.bindparam("id"))
        .scalar_subquery(),
    ),
)


def insert_events(conn: sa.Connection, id: str, new: Sequence[Mapping[str, JsonValue]]) -> list[int]:
    """The numbers of those whose key is new. The caller holds the lock, so that the next numbers are free."""
    found = conn.execute(_NEWEST_AND_STORED, {"id": id, "keys": [event["key"] for event in new]}).all()
    stored, last = {row.key for row in found}, max((row.seq for row in found), default=0)
    by_key = {event["key"]: event for event in new if event["key"] not in stored}
    rows = [
        {
            "session_id": id,
            "seq": seq,
            "at": time.time(),
            **{name: event[name] for name in EVENT_FIELDS if name in event},
            "content": {name: value for name, value in event.items() if name not in EVENT_FIELDS},
        }
        for seq, event in enumerate(by_key.values(), last + 1)
    ]
    if rows:
        conn.execute(events.insert(), rows)
    return list(range(last + 1, last + 1 + len(rows)))


def insert_state(conn: sa.Connection, id: str, at: float, content: JsonObject) -> str:
    """A change of state as an event; its key.

    The key holds the event's own number, so that a session may come to the same state twice.
    """
    last = sa.select(sa.func.coalesce(sa.func.max(events.c.seq), 0)).where(events.c.session_id == id)
    key = f"state/{conn.execute(last).scalar_one() + 1}"
    insert_events(conn, id, [{"key": key, "at": at, "node": "session", "kind": "state", **content}])
    return key


def events_after(conn: sa.Connection, id: str, seq: int, limit: int = MAX_EVENTS) -> list[EventRow]:
    """In order. The caller has checked that the session is the tenant's."""
    query = sa.select(*EVENT_COLUMNS).where(events.c.session_id == id, events.c.seq > seq)
    rows = conn.execute(query.order_by(events.c.seq).limit(limit))
    return [EventRow.model_validate(row._asdict()) for row in rows]


def told_events(conn: sa.Connection, id: str) -> list[EventRow]:
    """All of them, but for the pieces of streamed replies."""
    query = sa.select(*EVENT_COLUMNS).where(events.c.session_id == id, events.c.kind != "words")
    return [EventRow.model_validate(row._asdict()) for row in conn.execute(query.order_by(events.c.seq))]


def state_of(conn: sa.Connection, tenant: str, id: str) -> str:
    """That alone: a poll must not read the report each time."""
    query = sa.select(sessions.c.state).where(sessions.c.id == id, sessions.c.tenant == tenant)
    state = conn.execute(query).scalar()
    if state is None:
        raise NotFoundError("session", id)
    return str(state)


def last_events(conn: sa.Connection, ids: Sequence[str]) -> dict[str, int]:
    """The last event of each session; beyond all if it has ended, so that its streams end too."""
    newest = sa.select(sa.func.max(events.c.seq)).where(events.c.session_id == sessions.c.id)
    query = sa.select(sessions.c.id, sessions.c.state, newest.scalar_subquery())
    last: dict[str, int] = {}
    for start in range(0, len(ids), SESSIONS_AT_ONCE):
        batch = query.where(sessions.c.id.in_(ids[start : start + SESSIONS_AT_ONCE]))
        last |= {id: ENDED if state in TERMINAL else seq or 0 for id, state, seq in conn.execute(batch)}
    return last
