"""API keys, stored as digests, and the audit log."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from pydantic import JsonValue

from service.access.model import audit, keys
from service.db.ids import new_id
from service.db.queries import read_page
from service.errors import NotFoundError
from service.strict_json import JsonObject


@dataclass(frozen=True)
class KeyRow:
    id: str
    tenant: str
    name: str
    digest: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    used_at: float | None

    def is_valid(self, now_s: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now_s < self.expires_at)


def add_key(
    conn: sa.Connection,
    id: str,
    digest: str,
    name: str,
    scopes: Sequence[str],
    tenant: str = "",
    expires_at: float | None = None,
) -> None:
    row = {"id": id, "digest": digest, "name": name, "scopes": list(scopes), "tenant": tenant}
    conn.execute(keys.insert().values(**row, created_at=time.time(), expires_at=expires_at))


def find_key(conn: sa.Connection, id: str) -> KeyRow | None:
    """Revoked and expired ones too: the caller asks `is_valid`."""
    row = conn.execute(sa.select(keys).where(keys.c.id == id)).one_or_none()
    return None if row is None else KeyRow(**row._mapping)


def list_keys(conn: sa.Connection) -> list[KeyRow]:
    return [KeyRow(**row._mapping) for row in conn.execute(sa.select(keys).order_by(keys.c.created_at))]


def has_keys(conn: sa.Connection) -> bool:
    """Whether any key was ever made: with none the server is open, but on loopback only."""
    return conn.execute(sa.select(keys.c.id).limit(1)).first() is not None


def revoke_key(conn: sa.Connection, id: str) -> None:
    """Idempotent."""
    if find_key(conn, id) is None:
        raise NotFoundError("key", id)
    conn.execute(
        keys.update().where(keys.c.id == id, keys.c.revoked_at.is_(None)).values(revoked_at=time.time())
    )


def touch_key(conn: sa.Connection, id: str) -> None:
    conn.execute(keys.update().where(keys.c.id == id).values(used_at=time.time()))


@dataclass(frozen=True)
class AuditRow:
    id: str
    at: float
    who: str
    action: str
    target: str
    request_id: str | None
    details: JsonObject


def record(
    conn: sa.Connection,
    tenant: str,
    who: str,
    action: str,
    target: str,
    request_id: str | None = None,
    **details: JsonValue,
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
    rows, next_cursor = read_page(conn, query, audit.c.id, cursor, limit)
    return [AuditRow(**row._mapping) for row in rows], next_cursor
