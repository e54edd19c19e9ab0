"""What several tables are asked alike: for a page of a list, and to take a row that may be there already."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from service.store.ids import is_id
from tools.errors import InputError

MOST_ROWS = 500


def insert_into(conn: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """With `on_conflict_do_nothing` and `on_conflict_do_update`, which each dialect has for itself."""
    return postgresql.insert(table) if conn.dialect.name == "postgresql" else sqlite.insert(table)


def read_page(
    conn: sa.Connection,
    query: sa.Select[*tuple[Any, ...]],
    id: sa.Column[Any],
    cursor: str | None,
    limit: int,
) -> tuple[list[sa.Row[*tuple[Any, ...]]], str | None]:
    """Newest first, with the cursor of the next page: rows that arrive in between shift nothing."""
    if cursor is not None:
        if not is_id(cursor):
            raise InputError("cursor", cursor, "allowed: next_cursor of an earlier page")
        query = query.where(id < cursor)
    limit = max(1, min(limit, MOST_ROWS))
    found = conn.execute(query.order_by(id.desc()).limit(limit + 1)).all()
    rows = list(found[:limit])
    return rows, rows[-1].id if len(found) > limit else None
