"""Deleted sessions that have left something outside our tables; a worker erases it (service/work/tidy.py)."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from service.store.tables import erasures


@dataclass(frozen=True)
class Erasure:
    session_id: str
    attempts: int
    legs: int


def book_erasure(conn: sa.Connection, held: sa.Row[Any]) -> None:
    conn.execute(erasures.insert().values(session_id=held.id, attempts=held.attempt, legs=held.leg))


def list_erasures(conn: sa.Connection, limit: int = 100) -> list[Erasure]:
    query = sa.select(erasures).order_by(erasures.c.session_id).limit(limit)
    return [Erasure(**row._mapping) for row in conn.execute(query)]


def close_erasure(conn: sa.Connection, session_id: str) -> None:
    conn.execute(erasures.delete().where(erasures.c.session_id == session_id))
