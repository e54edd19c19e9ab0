"""Who did what, kept apart from the sessions so that it outlives them."""

import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.store.ids import new_id
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
) -> list[AuditRow]:
    """Newest first; the cursor is the id of the last one seen."""
    query = sa.select(*(audit.c[name] for name in AuditRow.__dataclass_fields__)).where(
        audit.c.tenant == tenant
    )
    if target is not None:
        query = query.where(audit.c.target == target)
    if cursor is not None:
        query = query.where(audit.c.id < cursor)
    found = conn.execute(query.order_by(audit.c.id.desc()).limit(limit))
    return [AuditRow(**row._mapping) for row in found]
