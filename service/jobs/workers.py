"""Workers and their leases: a heartbeat by the database's clock, and who is alive by it."""

import os
import socket
import threading
import time
import uuid

import sqlalchemy as sa

from service.db.engine import Database
from service.db.queries import insert_into
from service.jobs.model import WorkerRow, workers

EMBEDDED = "embedded"
"""With SQLite there is one worker; under a fixed name DBOS itself recovers what it had started."""


class Lease:
    """The right of this worker to run jobs; counted from before its heartbeat was written."""

    def __init__(self, database: Database, lease_s: float) -> None:
        self.lease_s = lease_s
        self.host, self.pid = socket.gethostname(), os.getpid()
        self.worker = EMBEDDED if database.is_sqlite else f"{self.host}-{self.pid}-{uuid.uuid4().hex[:8]}"
        self._database = database
        self._lock = threading.Lock()
        self._renewed_at = float("-inf")

    def renew(self) -> None:
        before = time.monotonic()
        with self._database.begin() as conn:
            heartbeat(conn, self.worker, self.host, self.pid)
        with self._lock:
            self._renewed_at = before

    def is_held(self) -> bool:
        with self._lock:
            return time.monotonic() - self._renewed_at < self.lease_s

    def give_up(self) -> None:
        """What this worker still runs may be taken over at once."""
        with self._lock:
            self._renewed_at = float("-inf")
        with self._database.begin() as conn:
            conn.execute(workers.delete().where(workers.c.id == self.worker))


def now_s(conn: sa.Connection) -> sa.ColumnElement[float]:
    """The database's clock."""
    if conn.dialect.name == "postgresql":
        return sa.cast(sa.func.extract("epoch", sa.func.clock_timestamp()), sa.Double)
    return (sa.func.julianday("now") - 2440587.5) * 86400.0


def heartbeat(conn: sa.Connection, id: str, host: str, pid: int) -> None:
    """This worker is alive."""
    now = now_s(conn)
    row = insert_into(conn, workers).values(id=id, host=host, pid=pid, started_at=now, heard_at=now)
    conn.execute(
        row.on_conflict_do_update(index_elements=["id"], set_={"host": host, "pid": pid, "heard_at": now})
    )


def list_living(conn: sa.Connection, lease_s: float) -> list[WorkerRow]:
    query = sa.select(workers).where(workers.c.heard_at > now_s(conn) - lease_s)
    return [WorkerRow(**row._mapping) for row in conn.execute(query.order_by(workers.c.id))]


def delete_dead(conn: sa.Connection, silent_s: float) -> None:
    """Rows of workers that have not been heard from for this long."""
    conn.execute(workers.delete().where(workers.c.heard_at <= now_s(conn) - silent_s))
