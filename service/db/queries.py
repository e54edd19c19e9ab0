"""What queries of all features share: upserts in both dialects, and pages of rows."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from service.db.ids import is_id
from tools.errors import InputError

MAX_ROWS = 500


def insert_into(conn: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """With `on_conflict_do_nothing` and `on_conflict_do_update`, which each dialect has for itself."""
    return postgresql.insert(table) if conn.dialect.name == "postgresql" else sqlite.insert(table)


def read_page(
    conn: sa.Connection,
    query: sa.Select[*tuple[object, ...]],
    id: sa.Column[object],
    cursor: str | None,
    limit: int,
) -> tuple[list[sa.Row[*tuple[object, ...]]], str | None]:
    """Newest first, with the cursor of the next page: rows that arrive in between shift nothing."""
    if cursor is not None:
        if not is_id(cursor):
            raise InputError("cursor", cursor, "allowed: next_cursor of an earlier page")
        query = query.where(id < cursor)
    limit = max(1, min(limit, MAX_ROWS))
    selected = conn.execute(query.order_by(id.desc()).limit(limit + 1)).all()
    rows = list(selected[:limit])
    return rows, rows[-1].id if len(selected) > limit else None


def lock_tenant(conn: sa.Connection, tenant: str) -> None:
    """Until the transaction ends no other counts what the tenant has: together they would exceed its quota.
    SQLite's transactions wait for each other anyway."""
    if conn.dialect.name == "postgresql":
        conn.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.func.hashtext(tenant))))
