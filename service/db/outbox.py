"""Webhooks to be sent: enqueued in the transaction that causes them, leased by a sender, rescheduled on
failure.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import sqlalchemy as sa

from service.db.models import SessionRow, deliveries, new_id
from service.strict_json import JsonObject

MAX_TAKEN = 64


@dataclass(frozen=True)
class Delivery:
    id: str
    session_id: str
    url: str
    body: JsonObject
    attempts: int
    tenant: str


def enqueue_webhook(
    conn: sa.Connection, row: SessionRow, event: str, content: JsonObject, now_s: float
) -> None:
    id = new_id(now_s)
    body = {"id": id, "event": event, "session": row.id, "at": now_s, "labels": row.labels, **content}
    values = {"id": id, "session_id": row.id, "tenant": row.tenant, "url": row.webhook, "body": body}
    conn.execute(deliveries.insert().values(**values, created_at=now_s, attempts=0, due_at=now_s))


def take_due(
    conn: sa.Connection,
    lease_s: float,
    per_tenant: int = MAX_TAKEN,
    in_flight: Mapping[str, int] = MappingProxyType({}),
) -> list[Delivery]:
    """Those that are due, leased: if the sender dies they are due again.

    A tenant has at most `per_tenant` in flight, so that its slow receivers delay nobody else's.
    """
    now_s, counts = time.time(), Counter(in_flight)
    full = [tenant for tenant, count in in_flight.items() if count >= per_tenant]
    is_due = sa.and_(deliveries.c.due_at <= now_s, deliveries.c.tenant.not_in(full))
    rank = sa.func.row_number().over(partition_by=deliveries.c.tenant, order_by=deliveries.c.due_at)
    first = sa.select(deliveries.c.id, rank.label("place")).where(is_due).subquery()
    chosen = sa.select(first.c.id).where(first.c.place <= per_tenant)
    locked = sa.select(deliveries).where(is_due, deliveries.c.id.in_(chosen)).order_by(deliveries.c.due_at)
    rows = []
    for row in conn.execute(locked.limit(MAX_TAKEN).with_for_update(skip_locked=True)):
        if counts[row.tenant] < per_tenant:
            counts[row.tenant] += 1
            rows.append(row)
    for row in rows:
        later = {"due_at": now_s + lease_s, "attempts": row.attempts + 1}
        conn.execute(deliveries.update().where(deliveries.c.id == row.id).values(later))
    return [Delivery(row.id, row.session_id, row.url, row.body, row.attempts + 1, row.tenant) for row in rows]


def close_delivery(conn: sa.Connection, id: str, answer: str) -> None:
    """The receiver has it."""
    done = {"due_at": None, "delivered_at": time.time(), "answer": answer}
    conn.execute(deliveries.update().where(deliveries.c.id == id).values(done))


def reschedule(conn: sa.Connection, id: str, answer: str, due_at: float | None) -> None:
    """Not delivered: due again at this time, or never."""
    conn.execute(deliveries.update().where(deliveries.c.id == id).values(due_at=due_at, answer=answer))
