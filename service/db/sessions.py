"""Sessions and their events: create, list, read, delete, append.

A deleted session is queued for cleanup in the same transaction.
"""

import hashlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa

from service.db.engine import insert_into, read_page
from service.db.models import (
    BUSY,
    LISTED_COLUMNS,
    QUEUED,
    SESSION_COLUMNS,
    Data,
    EventRow,
    SessionRow,
    erasures,
    events,
    labels,
    new_id,
    session_of,
    sessions,
)
from service.errors import CancelledError, ConflictError, FencedError, NotFoundError


@dataclass(frozen=True)
class Erasure:
    session_id: str
    attempts: int
    legs: int


def book_erasure(conn: sa.Connection, held: sa.Row[Any]) -> None:
    conn.execute(erasures.insert().values(session_id=held.id, attempts=held.attempt, legs=held.leg))


def list_erasures(conn: sa.Connection, limit: int = 100) -> list[Erasure]:
    query = sa.select(erasures).order_by(erasures.c.session_id).limit(limit)
    return [Erasure(**row._mapping) for row in conn.execute(query)]


def close_erasure(conn: sa.Connection, session_id: str) -> None:
    conn.execute(erasures.delete().where(erasures.c.session_id == session_id))


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


MOST_SEARCH_BYTES = 2000
DEFAULT_PRIORITY = 5
"""From 0 to 9; the higher ones run first."""


_IS_THE_TENANTS = (sessions.c.id == sa.bindparam("id"), sessions.c.tenant == sa.bindparam("tenant"))
_ONE = sa.select(*SESSION_COLUMNS).where(*_IS_THE_TENANTS)
_ONE_WITHOUT_REPORT = sa.select(*SESSION_COLUMNS[:-1]).where(*_IS_THE_TENANTS)
_LIST = sa.select(*LISTED_COLUMNS)


@dataclass(frozen=True)
class NewSession:
    """What a caller asks for, already checked by graph.request.parse_request."""

    request: Data
    """The body that parse_request takes."""
    tenant: str = ""
    owner: str = ""
    mode: str = "advise"
    approval: str = "none"
    priority: int = DEFAULT_PRIORITY
    labels: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    device: str | None = None
    num_devices: int | None = None
    budget: Data | None = None
    """Fields of graph.context.Limits that the caller wants smaller."""
    webhook: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True)
class SessionFilter:
    """Every part that is given must hold."""

    state: str | None = None
    device: str | None = None
    model: str | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """A label's value, or None for any value."""
    text: str | None = None


def create_session(
    conn: sa.Connection, new: NewSession, now_s: float | None = None
) -> tuple[SessionRow, bool]:
    """The session and whether it is new; the same idempotency key gives the same session again."""
    now_s = time.time() if now_s is None else now_s
    values = _values(new, now_s)
    insert = insert_into(conn, sessions)
    done = conn.execute(insert.values(values).on_conflict_do_nothing().returning(sessions.c.id)).scalar()
    if done is None:
        return _earlier(conn, new.tenant, str(new.idempotency_key), values["request_digest"]), False
    if new.labels:
        rows = [
            {"session_id": done, "tenant": new.tenant, "name": name, "value": value}
            for name, value in new.labels.items()
        ]
        conn.execute(labels.insert(), rows)
    content = {"state": QUEUED}
    first = {"session_id": done, "seq": 1, "key": "state/1", "at": now_s, "node": "session", "kind": "state"}
    conn.execute(events.insert().values(**first, content=content))
    return get_session(conn, new.tenant, done), True


def _values(new: NewSession, now_s: float) -> Data:
    body = [new.request, new.mode, new.approval, new.priority, dict(new.labels), new.budget, new.webhook]
    id = new_id(now_s)
    words = [
        id,
        new.model,
        new.device,
        new.owner,
        *new.labels,
        *new.labels.values(),
        new.request.get("notes"),
    ]
    return {
        "id": id,
        "tenant": new.tenant,
        "owner": new.owner,
        "state": QUEUED,
        "mode": new.mode,
        "approval": new.approval,
        "priority": new.priority,
        "leg": 1,
        "attempt": 1,
        "fence": 0,
        "claims": 0,
        "cancel_requested": False,
        "created_at": now_s,
        "queued_at": now_s,
        "updated_at": now_s,
        "model": new.model,
        "device": new.device,
        "num_devices": new.num_devices,
        "search": _search_text(words),
        "labels": dict(new.labels),
        "idempotency_key": new.idempotency_key,
        "request_digest": hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest(),
        "webhook": new.webhook,
        "budget": new.budget,
        "request": new.request,
    }


def _search_text(words: Iterable[object]) -> str:
    """Cut where PostgreSQL's index would refuse it."""
    text = "\n".join(str(word).lower() for word in words if word)
    return text.encode()[:MOST_SEARCH_BYTES].decode(errors="ignore")


def _earlier(conn: sa.Connection, tenant: str, idempotency_key: str, digest: str) -> SessionRow:
    found = conn.execute(
        sa.select(sessions).where(sessions.c.tenant == tenant, sessions.c.idempotency_key == idempotency_key)
    ).one()
    if found.request_digest != digest:
        raise ConflictError(
            f"the idempotency key {idempotency_key!r} was used for session {found.id} with another body; "
            "send the same body, or another key",
            field="Idempotency-Key",
        )
    return session_of(found)


def get_session(conn: sa.Connection, tenant: str, id: str, report: bool = True) -> SessionRow:
    """Without the report, which is long, where nobody looks at it."""
    query = _ONE if report else _ONE_WITHOUT_REPORT
    found = conn.execute(query, {"id": id, "tenant": tenant}).one_or_none()
    if found is None:
        raise NotFoundError("session", id)
    return SessionRow(*found)


def list_sessions(
    conn: sa.Connection,
    tenant: str,
    filters: SessionFilter | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> tuple[list[SessionRow], str | None]:
    """Newest first, with the cursor of the next page."""
    query = _LIST.where(sessions.c.tenant == tenant, *_conditions(tenant, filters or SessionFilter()))
    found, following = read_page(conn, query, sessions.c.id, cursor, limit)
    return [SessionRow(*row) for row in found], following


def _conditions(tenant: str, filters: SessionFilter) -> list[sa.ColumnElement[bool]]:
    equal = {"state": filters.state, "device": filters.device, "model": filters.model}
    conditions = [sessions.c[name] == value for name, value in equal.items() if value is not None]
    for name, value in filters.labels.items():
        has = sa.select(labels.c.session_id).where(labels.c.tenant == tenant, labels.c.name == name)
        conditions.append(sessions.c.id.in_(has if value is None else has.where(labels.c.value == value)))
    words = (filters.text or "").lower().split()
    return [*conditions, *(sessions.c.search.contains(word, autoescape=True) for word in words)]


def delete_session(conn: sa.Connection, tenant: str, id: str) -> None:
    """With its events and decisions; one that is still to run must be cancelled first."""
    get_session(conn, tenant, id, report=False)
    held = lock_session(conn, id)
    if held.state in BUSY:
        raise ConflictError(f"session {id} is {held.state}; cancel it first", field="state")
    conn.execute(sessions.delete().where(sessions.c.id == id))
    book_erasure(conn, held)


def counts_by_state(conn: sa.Connection, tenant: str | None = None) -> dict[str, int]:
    """Of one tenant; without one over all tenants, for /metrics."""
    query = sa.select(sessions.c.state, sa.func.count()).group_by(sessions.c.state)
    if tenant is not None:
        query = query.where(sessions.c.tenant == tenant)
    return {row[0]: row[1] for row in conn.execute(query)}
