"""Sessions and their events: create, list, read, delete, append.

A deleted session is queued for cleanup in the same transaction.
"""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import sqlalchemy as sa
from pydantic import JsonValue

from service.db.engine import insert_into, read_page
from service.db.models import (
    BUSY,
    LISTED_COLUMNS,
    QUEUED,
    SESSION_COLUMNS,
    EventRow,
    SessionRow,
    erasures,
    events,
    labels,
    new_id,
    searches,
    sessions,
)
from service.errors import CancelledError, ConflictError, FencedError, NotFoundError
from service.strict_json import JsonObject


@dataclass(frozen=True)
class Cleanup:
    """A deleted session whose checkpoints and queue records are still there."""

    session_id: str
    attempts: int
    dispatches: int


def enqueue_cleanup(conn: sa.Connection, row: SessionRow) -> None:
    values = {"session_id": row.id, "attempts": row.attempt, "dispatches": row.dispatch_no}
    conn.execute(erasures.insert().values(values))


def list_cleanups(conn: sa.Connection) -> list[Cleanup]:
    query = sa.select(erasures).order_by(erasures.c.session_id).limit(100)
    return [Cleanup(*row) for row in conn.execute(query)]


def finish_cleanup(conn: sa.Connection, session_id: str) -> None:
    conn.execute(erasures.delete().where(erasures.c.session_id == session_id))


OWN_COLUMNS = ("key", "at", "node", "kind")
MAX_EVENTS = 1000
_LOCKED = sa.select(*LISTED_COLUMNS).where(sessions.c.id == sa.bindparam("id")).with_for_update()
"""Without the request and the report, which writers of events do not need."""
_CLAIM = (
    sa.select(sessions.c.fence, sessions.c.worker, sessions.c.cancel_requested)
    .where(sessions.c.id == sa.bindparam("id"))
    .with_for_update()
)
_LAST = sa.func.coalesce(sa.func.max(events.c.seq), 0)
_LAST_AND_KNOWN = sa.select(events.c.seq, events.c.key).where(
    events.c.session_id == sa.bindparam("id"),
    sa.or_(
        events.c.key.in_(sa.bindparam("keys", expanding=True)),
        events.c.seq
        == sa.select(sa.func.max(events.c.seq))
        .where(events.c.session_id == sa.bindparam("id"))
        .scalar_subquery(),
    ),
)


def check_claim(conn: sa.Connection, id: str, fence: int) -> None:
    """Locks the session for the worker that holds the fence, and raises if it must stop."""
    claim = conn.execute(_CLAIM, {"id": id}).one_or_none()
    if claim is None:
        raise FencedError(f"session {id} is deleted")
    if claim.fence != fence:
        raise FencedError(f"session {id} was taken over by {claim.worker}")
    if claim.cancel_requested:
        raise CancelledError(f"session {id} was asked to stop")


def lock_session(
    conn: sa.Connection, id: str, fence: int | None = None, tenant: str | None = None
) -> SessionRow:
    """Nobody else writes about this session until the transaction ends (SQLite has one writer anyway).

    Without the request and the report. With a tenant, NotFoundError if the session is another tenant's.
    """
    columns = conn.execute(_LOCKED, {"id": id}).one_or_none()
    if columns is None or (tenant is not None and columns.tenant != tenant):
        raise FencedError(f"session {id} is deleted") if fence is not None else NotFoundError("session", id)
    row = SessionRow(*columns)
    if fence is not None and row.fence != fence:
        raise FencedError(f"session {id} was taken over by {row.worker}")
    return row


def insert_events(conn: sa.Connection, id: str, new: Sequence[Mapping[str, JsonValue]]) -> list[int]:
    """The numbers of those whose key is new. The caller holds the lock, so that the next numbers are free."""
    found = conn.execute(_LAST_AND_KNOWN, {"id": id, "keys": [event["key"] for event in new]}).all()
    known, last = {row.key for row in found}, max((row.seq for row in found), default=0)
    by_key = {event["key"]: event for event in new if event["key"] not in known}
    numbers = [last + place for place in range(1, len(by_key) + 1)]
    rows = [_event_columns(id, seq, event) for seq, event in zip(numbers, by_key.values(), strict=True)]
    if rows:
        conn.execute(events.insert(), rows)
    return numbers


def _event_columns(id: str, seq: int, event: Mapping[str, JsonValue]) -> JsonObject:
    content = {name: value for name, value in event.items() if name not in OWN_COLUMNS}
    own = {"key": event["key"], "at": event.get("at", time.time()), "node": event["node"]}
    return {"session_id": id, "seq": seq, **own, "kind": event["kind"], "content": content}


def next_seq(conn: sa.Connection, id: str) -> int:
    return int(conn.execute(sa.select(_LAST + 1).where(events.c.session_id == id)).scalar_one())


def events_after(conn: sa.Connection, id: str, seq: int, limit: int = MAX_EVENTS) -> list[EventRow]:
    """In order. The caller has checked that the session is the tenant's."""
    columns = [events.c[name] for name in EventRow.__dataclass_fields__]
    query = sa.select(*columns).where(events.c.session_id == id, events.c.seq > seq)
    return [EventRow(*row) for row in conn.execute(query.order_by(events.c.seq).limit(limit))]


MAX_SEARCH_BYTES = 2000
DEFAULT_PRIORITY = 5
"""From 0 to 9; the higher ones run first."""


_IS_THE_TENANTS = (sessions.c.id == sa.bindparam("id"), sessions.c.tenant == sa.bindparam("tenant"))
_ONE = sa.select(*SESSION_COLUMNS).where(*_IS_THE_TENANTS)
_ONE_WITHOUT_REPORT = sa.select(*SESSION_COLUMNS[:-1]).where(*_IS_THE_TENANTS)
_LIST = sa.select(*LISTED_COLUMNS)


@dataclass(frozen=True)
class NewSession:
    """What a caller asks for, already checked by graph.request.parse_request."""

    request: JsonObject
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
    name: str | None = None
    budget: JsonObject | None = None
    """Fields of graph.context.Limits that the caller wants smaller."""
    webhook: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True)
class SessionFilter:
    """All that are set must match."""

    state: str | None = None
    device: str | None = None
    model: str | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """A label's value, or None for any value."""
    text: str | None = None


def create_session(conn: sa.Connection, new: NewSession) -> tuple[SessionRow, bool]:
    """The session and whether it is new; the same idempotency key returns the same session."""
    now_s = time.time()
    id, digest = new_id(now_s), _digest(new)
    insert = insert_into(conn, sessions).values(
        id=id,
        tenant=new.tenant,
        owner=new.owner,
        state=QUEUED,
        mode=new.mode,
        approval=new.approval,
        priority=new.priority,
        dispatch_no=1,
        attempt=1,
        fence=0,
        claims=0,
        cancel_requested=False,
        created_at=now_s,
        queued_at=now_s,
        updated_at=now_s,
        model=new.model,
        device=new.device,
        num_devices=new.num_devices,
        name=new.name,
        search=_search_text(id, new),
        labels=dict(new.labels),
        idempotency_key=new.idempotency_key,
        request_digest=digest,
        webhook=new.webhook,
        budget=new.budget,
        request=new.request,
    )
    inserted = conn.execute(insert.on_conflict_do_nothing().returning(*SESSION_COLUMNS)).one_or_none()
    if inserted is None:
        return _earlier(conn, new.tenant, str(new.idempotency_key), digest), False
    row = SessionRow(*inserted)
    if new.labels:
        pairs = [
            {"session_id": row.id, "tenant": new.tenant, "name": name, "value": value}
            for name, value in new.labels.items()
        ]
        conn.execute(labels.insert(), pairs)
    first = {
        "session_id": row.id,
        "seq": 1,
        "key": "state/1",
        "at": now_s,
        "node": "session",
        "kind": "state",
    }
    conn.execute(events.insert().values(**first, content={"state": QUEUED}))
    return row, True


def _digest(new: NewSession) -> str:
    """Of what a caller may not change under the same idempotency key."""
    body = [new.request, new.mode, new.approval, new.priority, dict(new.labels), new.budget, new.webhook]
    body += [new.name] if new.name else []
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


def _search_text(id: str, new: NewSession) -> str:
    """Cut to what PostgreSQL's index accepts."""
    own = (id, new.name, new.model, new.device, new.owner)
    return _cut([*own, *new.labels, *new.labels.values(), new.request.get("notes")])


def _cut(words: Iterable[object]) -> str:
    text = "\n".join(str(word).lower() for word in words if word)
    return text.encode()[:MAX_SEARCH_BYTES].decode(errors="ignore")


def rename_session(conn: sa.Connection, row: SessionRow, name: str | None) -> SessionRow:
    """None takes the name away; a search finds the session by its new name."""
    found = conn.scalar(sa.select(sessions.c.search).where(sessions.c.id == row.id)) or ""
    id, *words = found.split("\n")
    words = words[1:] if row.name and words[:1] == [row.name.lower()] else words
    values = {"name": name, "search": _cut([id, name, *words]), "updated_at": time.time()}
    conn.execute(sessions.update().where(sessions.c.id == row.id).values(values))
    return replace(row, name=name)


def annotate_session(
    conn: sa.Connection, row: SessionRow, named: Mapping[str, str], remark: str | None
) -> SessionRow:
    """Replaces its labels and its remark; a search finds it by them."""
    notes = conn.scalar(sa.select(sessions.c.request["notes"].as_string()).where(sessions.c.id == row.id))
    own = (row.id, row.name, row.model, row.device, row.owner)
    search = _cut([*own, *named, *named.values(), remark, notes])
    values = {"labels": dict(named), "remark": remark, "search": search, "updated_at": time.time()}
    conn.execute(sessions.update().where(sessions.c.id == row.id).values(values))
    conn.execute(labels.delete().where(labels.c.session_id == row.id))
    pairs = [
        {"session_id": row.id, "tenant": row.tenant, "name": name, "value": value}
        for name, value in named.items()
    ]
    if pairs:
        conn.execute(labels.insert(), pairs)
    return replace(row, labels=dict(named), remark=remark)


def keep_search(conn: sa.Connection, id: str, plans: bytes) -> None:
    """In place of those of an earlier search of the session."""
    row = insert_into(conn, searches).values(session_id=id, plans=plans)
    conn.execute(row.on_conflict_do_update(index_elements=["session_id"], set_={"plans": plans}))


def find_search(conn: sa.Connection, tenant: str, id: str) -> bytes | None:
    """The packed plans; None for a session that has not searched, or did before they were kept."""
    query = sa.select(searches.c.plans).join(sessions, sessions.c.id == searches.c.session_id)
    plans = conn.scalar(query.where(searches.c.session_id == id, sessions.c.tenant == tenant))
    return None if plans is None else bytes(plans)


def _earlier(conn: sa.Connection, tenant: str, idempotency_key: str, digest: str) -> SessionRow:
    query = sa.select(*SESSION_COLUMNS, sessions.c.request_digest)
    is_earlier = sessions.c.tenant == tenant, sessions.c.idempotency_key == idempotency_key
    *columns, earlier_digest = conn.execute(query.where(*is_earlier)).one()
    row = SessionRow(*columns)
    if earlier_digest != digest:
        raise ConflictError(
            f"the idempotency key {idempotency_key!r} was used for session {row.id} with another body; "
            "send the same body, or another key",
            field="Idempotency-Key",
        )
    return row


def find_by_key(conn: sa.Connection, tenant: str, idempotency_key: str) -> str | None:
    """The id of the session that was submitted under this key."""
    has_key = sessions.c.tenant == tenant, sessions.c.idempotency_key == idempotency_key
    return conn.scalar(sa.select(sessions.c.id).where(*has_key))


def get_session(conn: sa.Connection, tenant: str, id: str, report: bool = True) -> SessionRow:
    """The report is long: leave it out unless it is needed."""
    query = _ONE if report else _ONE_WITHOUT_REPORT
    columns = conn.execute(query, {"id": id, "tenant": tenant}).one_or_none()
    if columns is None:
        raise NotFoundError("session", id)
    return SessionRow(*columns)


def list_sessions(
    conn: sa.Connection,
    tenant: str,
    filters: SessionFilter | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> tuple[list[SessionRow], str | None]:
    """Newest first, with the cursor of the next page."""
    query = _LIST.where(sessions.c.tenant == tenant, *_conditions(tenant, filters or SessionFilter()))
    rows, next_cursor = read_page(conn, query, sessions.c.id, cursor, limit)
    return [SessionRow(*row) for row in rows], next_cursor


SORTS = ("model", "state", "num_devices", "bottleneck", "speedup", "measured_speedup", "created_at", "owner")


def list_sorted(
    conn: sa.Connection, tenant: str, filters: SessionFilter, by: str, start: int, limit: int
) -> tuple[list[SessionRow], bool]:
    """By one of SORTS, with `-` before it the other way round; what has no value comes last. And whether
    more follow."""
    column = sessions.c[by.removeprefix("-")]
    order = column.desc() if by.startswith("-") else column.asc()
    query = _LIST.where(sessions.c.tenant == tenant, *_conditions(tenant, filters))
    query = query.order_by(order.nulls_last(), sessions.c.id.desc()).offset(start).limit(limit + 1)
    rows = [SessionRow(*row) for row in conn.execute(query)]
    return rows[:limit], len(rows) > limit


def _conditions(tenant: str, filters: SessionFilter) -> list[sa.ColumnElement[bool]]:
    equal = {"state": filters.state, "device": filters.device, "model": filters.model}
    conditions = [sessions.c[name] == value for name, value in equal.items() if value is not None]
    for name, value in filters.labels.items():
        has = sa.select(labels.c.session_id).where(labels.c.tenant == tenant, labels.c.name == name)
        conditions.append(sessions.c.id.in_(has if value is None else has.where(labels.c.value == value)))
    words = (filters.text or "").lower().split()
    return [*conditions, *(sessions.c.search.contains(word, autoescape=True) for word in words)]


def delete_session(conn: sa.Connection, tenant: str, id: str) -> None:
    """With its events and decisions; ConflictError if it is still to run."""
    row = lock_session(conn, id, tenant=tenant)
    if row.state in BUSY:
        raise ConflictError(f"session {id} is {row.state}; cancel it first", field="state")
    conn.execute(sessions.delete().where(sessions.c.id == id))
    enqueue_cleanup(conn, row)


def count_busy(conn: sa.Connection, tenant: str, owner: str | None = None) -> int:
    """Queued or running, of the tenant or of one of its callers."""
    query = sa.select(sa.func.count()).where(sessions.c.tenant == tenant, sessions.c.state.in_(BUSY))
    return int(conn.scalar(query if owner is None else query.where(sessions.c.owner == owner)) or 0)


def counts_by_state(conn: sa.Connection, tenant: str | None = None) -> dict[str, int]:
    """Of one tenant; without one over all tenants, for /metrics."""
    query = sa.select(sessions.c.state, sa.func.count()).group_by(sessions.c.state)
    if tenant is not None:
        query = query.where(sessions.c.tenant == tenant)
    return {row[0]: row[1] for row in conn.execute(query)}
