"""API keys as the service knows them: never the key itself, only its digest."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from service.errors import NotFoundError
from service.store.tables import keys


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
    """Again changes nothing."""
    if find_key(conn, id) is None:
        raise NotFoundError("key", id)
    conn.execute(
        keys.update().where(keys.c.id == id, keys.c.revoked_at.is_(None)).values(revoked_at=time.time())
    )


def touch_key(conn: sa.Connection, id: str) -> None:
    conn.execute(keys.update().where(keys.c.id == id).values(used_at=time.time()))
