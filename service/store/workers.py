"""Which workers live: each writes its row again and again; one silent for a lease has lost its sessions.

All times are the database's where it has a clock of its own, so that machines need not agree on theirs.
"""

from dataclasses import dataclass

import sqlalchemy as sa

from service.store.queries import insert_into
from service.store.tables import workers


@dataclass(frozen=True)
class WorkerRow:
    id: str
    host: str
    pid: int
    started_at: float
    heard_at: float


def now_s(conn: sa.Connection) -> sa.ColumnElement[float]:
    """The database's clock."""
    if conn.dialect.name == "postgresql":
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double)
    return (sa.func.julianday("now") - 2440587.5) * 86400.0


def beat(conn: sa.Connection, id: str, host: str, pid: int) -> None:
    """I live."""
    insert = insert_into(conn, workers)
    now = now_s(conn)
    row = insert.values(id=id, host=host, pid=pid, started_at=now, heard_at=now)
    conn.execute(row.on_conflict_do_update(index_elements=["id"], set_={"heard_at": now}))


def leave(conn: sa.Connection, id: str) -> None:
    """I stop: what I still hold may be taken over at once."""
    conn.execute(workers.delete().where(workers.c.id == id))


def list_living(conn: sa.Connection, lease_s: float) -> list[WorkerRow]:
    query = sa.select(workers).where(workers.c.heard_at > now_s(conn) - lease_s)
    return [WorkerRow(**row._mapping) for row in conn.execute(query.order_by(workers.c.id))]


def forget_dead(conn: sa.Connection, silent_s: float) -> None:
    """Rows of workers that have been silent for so long that nothing of theirs is left."""
    conn.execute(workers.delete().where(workers.c.heard_at <= now_s(conn) - silent_s))
