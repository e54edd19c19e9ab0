"""Webhooks to be sent: enqueued in the transaction that causes them, leased, rescheduled on failure."""

import time
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

import sqlalchemy as sa
from pydantic import JsonValue

from service.db.ids import new_id
from service.jobs.model import WebhookDelivery, deliveries

MAX_TAKEN = 64


def enqueue_webhook(conn: sa.Connection, tenant: str, session: str, url: str, **body: JsonValue) -> None:
    """The id in the body lets a receiver drop repeats."""
    now_s = time.time()
    id = new_id(now_s)
    content = {"id": id, "session": session, **body}
    row = {"id": id, "session_id": session, "tenant": tenant, "url": url, "body": content}
    conn.execute(deliveries.insert().values(**row, created_at=now_s, attempts=0, due_at=now_s))


def take_due(
    conn: sa.Connection,
    lease_s: float,
    per_tenant: int = MAX_TAKEN,
    in_flight: Mapping[str, int] = MappingProxyType({}),
) -> list[WebhookDelivery]:
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
    taken = []
    for row in conn.execute(locked.limit(MAX_TAKEN).with_for_update(skip_locked=True)).all():
        if counts[row.tenant] < per_tenant:
            counts[row.tenant] += 1
            attempts = row.attempts + 1
            leased = {"due_at": now_s + lease_s, "attempts": attempts}
            conn.execute(deliveries.update().where(deliveries.c.id == row.id).values(leased))
            taken.append(WebhookDelivery(row.id, row.session_id, row.url, row.body, attempts, row.tenant))
    return taken


def close_delivery(conn: sa.Connection, id: str, answer: str) -> None:
    done = {"due_at": None, "delivered_at": time.time(), "answer": answer}
    conn.execute(deliveries.update().where(deliveries.c.id == id).values(done))


def reschedule(conn: sa.Connection, id: str, answer: str, due_at: float | None) -> None:
    """Not delivered: due again at this time, or never."""
    conn.execute(deliveries.update().where(deliveries.c.id == id).values(due_at=due_at, answer=answer))
