"""Sessions in the database: create, lock, read, list, change, delete; and the plans their search timed.

A deleted session is queued for cleanup in the same transaction.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import sqlalchemy as sa
from pydantic import JsonValue

from service.db.queries import insert_into, read_page
from service.errors import CancelledError, ConflictError, FencedError, NotFoundError
from service.jobs.model import BUSY
from service.sessions.event_store import insert_state
from service.sessions.model import WAITING, SessionChoices, SessionRow, erasures, labels, searches, sessions

MAX_SEARCH_BYTES = 2000
"""What PostgreSQL's index accepts."""
SORTS = ("model", "state", "num_devices", "bottleneck", "speedup", "measured_speedup", "created_at", "owner")
CHOICES_OF_0_2 = ("priority", "labels", "webhook")
LONG = ("request", "report")
"""Left out of lists."""
ALL_COLUMNS = tuple(sessions.c[name] for name in SessionRow.model_fields)
ONE_WITHOUT_REPORT = tuple(column for column in ALL_COLUMNS if column.name != "report")
LISTED = tuple(column for column in ALL_COLUMNS if column.name not in LONG)
_LOCKED = sa.select(*LISTED).where(sessions.c.id == sa.bindparam("id")).with_for_update()
_CLAIM = (
    sa.select(sessions.c.fence, sessions.c.worker, sessions.c.cancel_requested)
    .where(sessions.c.id == sa.bindparam("id"))
    .with_for_update()
)
_IS_THE_TENANTS = (sessions.c.id == sa.bindparam("id"), sessions.c.tenant == sa.bindparam("tenant"))
_ONE = sa.select(*ALL_COLUMNS).where(*_IS_THE_TENANTS)
_ONE_WITHOUT_REPORT = sa.select(*ONE_WITHOUT_REPORT).where(*_IS_THE_TENANTS)


@dataclass(frozen=True)
class SessionFilter:
    """All that are set must match."""

    state: str | None = None
    device: str | None = None
    model: str | None = None
    labels: Mapping[str, str | None] = field(default_factory=dict)
    """A label's value, or None for any value."""
    text: str | None = None


@dataclass(frozen=True)
class Cleanup:
    """A deleted session whose checkpoints and queue records are still there."""

    session_id: str
    attempts: int
    dispatches: int


def read_row(row: sa.Row[*tuple[object, ...]]) -> SessionRow:
    return SessionRow.model_validate(row._asdict())


def create_session(conn: sa.Connection, new: SessionRow) -> tuple[SessionRow, bool]:
    """The session and whether it is new; the same idempotency key returns the same session."""
    # What a caller may not change under the same key; what version 0.2 did not have only where it is stated.
    body = [new.request, new.mode, new.approval, new.priority, new.labels, new.budget, new.webhook]
    later = [getattr(new, name) for name in SessionChoices.model_fields if name not in CHOICES_OF_0_2]
    origin = new.forked_from.model_dump(mode="json", exclude_none=True) if new.forked_from else None
    body += filter(None, [*later, origin and [origin["session"], origin["changed"]]])
    digest = hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()
    columns = {
        **dict(new),
        "error": new.error.model_dump() if new.error else None,
        "forked_from": origin,
        "search": _search_text(new, new.request.get("notes")),
        "request_digest": digest,
    }
    insert = insert_into(conn, sessions).values(columns).on_conflict_do_nothing()
    if conn.execute(insert.returning(sessions.c.id)).one_or_none():
        _insert_labels(conn, new)
        insert_state(conn, new.id, new.created_at, {"state": new.state})
        return new, True
    has_key = sessions.c.tenant == new.tenant, sessions.c.idempotency_key == new.idempotency_key
    stored = conn.execute(sa.select(*ALL_COLUMNS, sessions.c.request_digest).where(*has_key)).one()
    if stored.request_digest != digest:
        raise ConflictError(
            f"the idempotency key {new.idempotency_key!r} was used for session {stored.id} with another "
            "body; send the same body, or another key",
            path="Idempotency-Key",
        )
    return read_row(stored), False


def find_by_key(conn: sa.Connection, tenant: str, idempotency_key: str) -> str | None:
    """The id of the session that was submitted under this key."""
    has_key = sessions.c.tenant == tenant, sessions.c.idempotency_key == idempotency_key
    return conn.scalar(sa.select(sessions.c.id).where(*has_key))


def get_session(conn: sa.Connection, tenant: str, id: str, report: bool = True) -> SessionRow:
    """The report is long: leave it out unless it is needed."""
    query = _ONE if report else _ONE_WITHOUT_REPORT
    row = conn.execute(query, {"id": id, "tenant": tenant}).one_or_none()
    if row is None:
        raise NotFoundError("session", id)
    return read_row(row)


def list_sessions(
    conn: sa.Connection,
    tenant: str,
    filters: SessionFilter | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> tuple[list[SessionRow], str | None]:
    """Newest first, with the cursor of the next page."""
    query = sa.select(*LISTED).where(*_conditions(tenant, filters or SessionFilter()))
    rows, next_cursor = read_page(conn, query, sessions.c.id, cursor, limit)
    return [read_row(row) for row in rows], next_cursor


def list_sorted(
    conn: sa.Connection, tenant: str, filters: SessionFilter, by: str, start: int, limit: int
) -> tuple[list[SessionRow], bool]:
    """By one of SORTS, with `-` the other way round; no value comes last. And whether more follow."""
    column = sessions.c[by.removeprefix("-")]
    order = column.desc() if by.startswith("-") else column.asc()
    query = sa.select(*LISTED).where(*_conditions(tenant, filters))
    query = query.order_by(order.nulls_last(), sessions.c.id.desc()).offset(start).limit(limit + 1)
    rows = [read_row(row) for row in conn.execute(query)]
    return rows[:limit], len(rows) > limit


def count_busy(conn: sa.Connection, tenant: str, owner: str | None = None) -> int:
    """Queued, running or waiting for approval, of the tenant or of one of its callers."""
    has_not_ended = sessions.c.state.in_((*BUSY, WAITING))
    query = sa.select(sa.func.count()).where(sessions.c.tenant == tenant, has_not_ended)
    return int(conn.scalar(query if owner is None else query.where(sessions.c.owner == owner)) or 0)


def counts_by_state(conn: sa.Connection, tenant: str | None = None) -> dict[str, int]:
    """Without a tenant the counts are over all of them, for /metrics."""
    query = sa.select(sessions.c.state, sa.func.count()).group_by(sessions.c.state)
    if tenant is not None:
        query = query.where(sessions.c.tenant == tenant)
    return {row[0]: row[1] for row in conn.execute(query)}


def find_locked_session(conn: sa.Connection, id: str) -> SessionRow | None:
    """Nobody else writes about this session until the transaction ends (SQLite has one writer anyway).

    Without the request and the report.
    """
    row = conn.execute(_LOCKED, {"id": id}).one_or_none()
    return None if row is None else read_row(row)


def lock_session(
    conn: sa.Connection, id: str, fence: int | None = None, tenant: str | None = None
) -> SessionRow:
    """As `find_locked_session`; NotFoundError if there is none, or it is another tenant's."""
    row = find_locked_session(conn, id)
    if row is None or (tenant is not None and row.tenant != tenant):
        raise FencedError(f"session {id} is deleted") if fence is not None else NotFoundError("session", id)
    if fence is not None and row.fence != fence:
        raise FencedError(f"session {id} was taken over by {row.worker}")
    return row


def check_claim(conn: sa.Connection, id: str, fence: int) -> None:
    """Locks the session for the worker that holds the fence, and raises if it must stop."""
    claim = conn.execute(_CLAIM, {"id": id}).one_or_none()
    if claim is None:
        raise FencedError(f"session {id} is deleted")
    if claim.fence != fence:
        raise FencedError(f"session {id} was taken over by {claim.worker}")
    if claim.cancel_requested:
        raise CancelledError(f"session {id} was asked to stop")


def update_session(conn: sa.Connection, row: SessionRow, **changed: JsonValue) -> SessionRow:
    """What people change: name, labels, remark; a search finds the session by them. The row is locked."""
    after = row.model_copy(update={**changed, "updated_at": time.time()})
    notes = conn.scalar(sa.select(sessions.c.request["notes"].as_string()).where(sessions.c.id == row.id))
    values = {**changed, "updated_at": after.updated_at, "search": _search_text(after, notes)}
    conn.execute(sessions.update().where(sessions.c.id == row.id).values(values))
    if "labels" in changed:
        conn.execute(labels.delete().where(labels.c.session_id == row.id))
        _insert_labels(conn, after)
    return after


def delete_session(conn: sa.Connection, tenant: str, id: str) -> None:
    """With its events and decisions; ConflictError if it is still to run."""
    row = lock_session(conn, id, tenant=tenant)
    if row.state in BUSY:
        raise ConflictError(f"session {id} is {row.state}; cancel it first", path="state")
    conn.execute(sessions.delete().where(sessions.c.id == id))
    values = {"session_id": row.id, "attempts": row.attempt, "dispatches": row.dispatch_no}
    conn.execute(erasures.insert().values(values))


def list_cleanups(conn: sa.Connection) -> list[Cleanup]:
    query = sa.select(erasures).order_by(erasures.c.session_id).limit(100)
    return [Cleanup(**row._mapping) for row in conn.execute(query)]


def finish_cleanup(conn: sa.Connection, session_id: str) -> None:
    conn.execute(erasures.delete().where(erasures.c.session_id == session_id))


def keep_search(conn: sa.Connection, id: str, plans: bytes) -> None:
    """In place of those of an earlier search of the session."""
    row = insert_into(conn, searches).values(session_id=id, plans=plans)
    conn.execute(row.on_conflict_do_update(index_elements=["session_id"], set_={"plans": plans}))


def find_search(conn: sa.Connection, tenant: str, id: str) -> bytes | None:
    """The packed plans; None for a session that has not searched, or did before they were kept."""
    query = sa.select(searches.c.plans).join(sessions, sessions.c.id == searches.c.session_id)
    plans = conn.scalar(query.where(searches.c.session_id == id, sessions.c.tenant == tenant))
    return None if plans is None else bytes(plans)


def _insert_labels(conn: sa.Connection, row: SessionRow) -> None:
    pairs = [
        {"session_id": row.id, "tenant": row.tenant, "name": name, "value": value}
        for name, value in row.labels.items()
    ]
    if pairs:
        conn.execute(labels.insert(), pairs)


def _search_text(row: SessionRow, notes: JsonValue) -> str:
    """The words by which a search finds it."""
    origin = row.forked_from.session if row.forked_from else None
    named = (row.id, row.name, row.model, row.device, row.owner)
    words = (*named, origin, *row.labels, *row.labels.values(), row.remark, notes)
    text = "\n".join(str(word).lower() for word in words if word)
    return text.encode()[:MAX_SEARCH_BYTES].decode(errors="ignore")


def _conditions(tenant: str, filters: SessionFilter) -> list[sa.ColumnElement[bool]]:
    equal = {"state": filters.state, "device": filters.device, "model": filters.model}
    conditions = [sessions.c[name] == value for name, value in equal.items() if value is not None]
    for name, value in filters.labels.items():
        has = sa.select(labels.c.session_id).where(labels.c.tenant == tenant, labels.c.name == name)
        conditions.append(sessions.c.id.in_(has if value is None else has.where(labels.c.value == value)))
    words = (filters.text or "").lower().split()
    found = (sessions.c.search.contains(word, autoescape=True) for word in words)
    return [sessions.c.tenant == tenant, *conditions, *found]
