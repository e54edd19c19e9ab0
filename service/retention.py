"""Retention: what is old enough to go, by setting and tenant; counted for a dry run, deleted by workers.

Uploaded traces carry the time at which they expire (service/traces); here they are only counted.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa

from service.access.model import audit
from service.access.store import record
from service.db.engine import Database
from service.db.queries import insert_into
from service.errors import ConflictError, NotFoundError
from service.jobs.model import TERMINAL
from service.sessions.model import erasures, events, sessions
from service.sessions.store import delete_session
from service.settings import DAY_S, Expiring, Settings
from service.traces.model import traces

SWEEP_EVERY_S = 600.0
AT_ONCE = 500
WHO = "retention"
STATE = "state"
"""The events that stay with a session whose details are gone: they say how it ended."""


@dataclass(frozen=True)
class Expired:
    tenant: str
    kind: Expiring
    days: int
    count: int
    oldest_at: float


def find_expired(settings: Settings, conn: sa.Connection, now_s: float) -> list[Expired]:
    """What a sweep would delete now: the dry run."""
    found = []
    for tenant, kind, days, query in _queries(settings, conn, now_s):
        old = query.subquery()
        count, oldest = conn.execute(sa.select(sa.func.count(), sa.func.min(old.c.at))).one()
        if count:
            found.append(Expired(tenant, kind, days, count, oldest))
    return found


def delete_expired(settings: Settings, database: Database, now_s: float | None = None) -> int:
    """How many things went. A worker that dies amid it has deleted some; the next sweep takes the rest."""
    now_s, deleted = now_s or time.time(), 0
    with database.read() as conn:
        queries = [each for each in _queries(settings, conn, now_s) if each[1] != "traces"]
    for tenant, kind, days, query in queries:
        while True:
            with database.begin() as conn:
                ids = [row.id for row in conn.execute(query.limit(AT_ONCE))]
                if not ids:
                    break
                if kind == "audit":
                    conn.execute(audit.delete().where(audit.c.id.in_(ids)))
                elif kind == "details":
                    _delete_details(conn, ids)
                for id in ids if kind == "sessions" else ():
                    with suppress(ConflictError, NotFoundError):  # retried or deleted meanwhile
                        delete_session(conn, tenant, id)
                record(conn, tenant, WHO, f"{kind}.expire", "", count=len(ids), days=days)
            deleted += len(ids)
    return deleted


def _queries(
    settings: Settings, conn: sa.Connection, now_s: float
) -> Iterator[tuple[str, Expiring, int, sa.Select[str, float]]]:
    """Id and time of what has expired, for each tenant and kind that expires."""
    s, a, t = sessions.c, audit.c, traces.c
    has_details = sa.exists().where(events.c.session_id == s.id, events.c.kind != STATE)
    ended = sa.select(s.id, s.finished_at.label("at")).where(s.state.in_(TERMINAL))
    kinds: dict[Expiring, tuple[sa.Select[str, float], sa.Column[str]]] = {
        "sessions": (ended, s.tenant),
        "details": (ended.where(has_details), s.tenant),
        "audit": (sa.select(a.id, a.at), a.tenant),
        "traces": (sa.select(t.id, t.expires_at.label("at")), t.tenant),
    }
    tenants = sa.union(sa.select(s.tenant), sa.select(a.tenant), sa.select(t.tenant))
    for tenant in sorted(conn.scalars(tenants)):
        for kind, (query, owner) in kinds.items():
            days = settings.days_kept(tenant, kind)
            if days is not None:
                at, age_s = query.selected_columns.at, 0.0 if kind == "traces" else days * DAY_S
                yield tenant, kind, days, query.where(owner == tenant, at < now_s - age_s).order_by(at)


def _delete_details(conn: sa.Connection, ids: Sequence[str]) -> None:
    """Events, and by the cleanup of workers checkpoints and the queue's records."""
    conn.execute(events.delete().where(events.c.session_id.in_(ids), events.c.kind != STATE))
    numbers = sa.select(sessions.c.id, sessions.c.attempt, sessions.c.dispatch_no).where(
        sessions.c.id.in_(ids)
    )
    rows = [
        {"session_id": row.id, "attempts": row.attempt, "dispatches": row.dispatch_no}
        for row in conn.execute(numbers)
    ]
    conn.execute(insert_into(conn, erasures).values(rows).on_conflict_do_nothing())
