"""Who did what, kept apart from the sessions so that it outlives them."""

import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.store.ids import new_id
from service.store.queries import read_page
from service.store.rows import Data
from service.store.tables import audit


@dataclass(frozen=True)
class AuditRow:
    id: str
    at: float
    who: str
    action: str
    target: str
    request_id: str | None
    details: Data


def record(
    conn: sa.Connection,
    tenant: str,
    who: str,
    action: str,
    target: str,
    request_id: str | None = None,
    **details: Any,  # noqa: ANN401 - any JSON
) -> None:
    """In the transaction of what it records."""
    row = {"tenant": tenant, "who": who, "action": action, "target": target, "request_id": request_id}
    conn.execute(audit.insert().values(id=new_id(), at=time.time(), details=details, **row))


def list_audit(
    conn: sa.Connection, tenant: str, target: str | None = None, cursor: str | None = None, limit: int = 100
) -> tuple[list[AuditRow], str | None]:
    """Newest first, with the cursor of the next page."""
    columns = [audit.c[name] for name in AuditRow.__dataclass_fields__]
    query = sa.select(*columns).where(audit.c.tenant == tenant)
    if target is not None:
        query = query.where(audit.c.target == target)
    found, following = read_page(conn, query, audit.c.id, cursor, limit)
    return [AuditRow(**row._mapping) for row in found], following
