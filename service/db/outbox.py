"""Webhooks to be sent: enqueued in the transaction that causes them, leased by a sender, rescheduled on
failure.
"""

import time
from dataclasses import dataclass, fields

import sqlalchemy as sa

from service.db.models import SessionRow, deliveries, new_id
from service.strict_json import JsonObject


@dataclass(frozen=True)
class Delivery:
    id: str
    session_id: str
    url: str
    body: JsonObject
    attempts: int
    due_at: float | None = None
    delivered_at: float | None = None
    answer: str | None = None


def enqueue_webhook(
    conn: sa.Connection, row: SessionRow, event: str, content: JsonObject, now_s: float
) -> None:
    id = new_id(now_s)
    body = {"id": id, "event": event, "session": row.id, "at": now_s, "labels": row.labels, **content}
    values = {"id": id, "session_id": row.id, "tenant": row.tenant, "url": row.webhook, "body": body}
    conn.execute(deliveries.insert().values(**values, created_at=now_s, attempts=0, due_at=now_s))


def take_due(conn: sa.Connection, lease_s: float, limit: int = 10) -> list[Delivery]:
    """Those that are due, leased: if the sender dies they are due again."""
    now_s = time.time()
    due = sa.select(deliveries).where(deliveries.c.due_at <= now_s).order_by(deliveries.c.due_at)
    rows = conn.execute(due.limit(limit).with_for_update(skip_locked=True)).all()
    for row in rows:
        later = {"due_at": now_s + lease_s, "attempts": row.attempts + 1}
        conn.execute(deliveries.update().where(deliveries.c.id == row.id).values(later))
    return [Delivery(row.id, row.session_id, row.url, row.body, row.attempts + 1) for row in rows]


def close_delivery(conn: sa.Connection, id: str, answer: str) -> None:
    """The receiver has it."""
    done = {"due_at": None, "delivered_at": time.time(), "answer": answer}
    conn.execute(deliveries.update().where(deliveries.c.id == id).values(done))


def reschedule(conn: sa.Connection, id: str, answer: str, due_at: float | None) -> None:
    """Not delivered: due again at this time, or never."""
    conn.execute(deliveries.update().where(deliveries.c.id == id).values(due_at=due_at, answer=answer))


def list_deliveries(conn: sa.Connection, session_id: str) -> list[Delivery]:
    columns = [deliveries.c[field.name] for field in fields(Delivery)]
    query = sa.select(*columns).where(deliveries.c.session_id == session_id).order_by(deliveries.c.id)
    return [Delivery(*row) for row in conn.execute(query)]
