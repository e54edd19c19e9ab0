"""A tenant's CPU seconds, whichever API process computes for it: each charges what the others have spent."""

from collections import defaultdict
from threading import Lock

import sqlalchemy as sa

from service.access.model import computing_use
from service.db.engine import Database
from service.db.ids import new_id
from service.db.queries import insert_into
from service.http.limits import RateLimit
from service.jobs.workers import now_s

KEPT_S = 3600.0
"""What a process that is gone has spent is deleted then."""


class CpuBudget:
    def __init__(self, database: Database, per_minute: float) -> None:
        self._database, self._limit = database, RateLimit(per_minute, burst_s=60.0)
        self._process, self._lock = new_id(), Lock()
        self._spent: defaultdict[str, float] = defaultdict(float)
        self._unshared: set[str] = set()
        self._seen: dict[tuple[str, str], float] | None = None
        """By process and tenant: what the others had spent when they were last looked at."""

    def wait_s(self, tenant: str) -> int:
        """0 if the tenant may compute, else the seconds until it may."""
        return self._limit.wait_s(tenant, cost=0.0)

    def pay(self, tenant: str, cpu_s: float) -> None:
        self._limit.wait_s(tenant, cpu_s, owes=True)
        with self._lock:
            self._spent[tenant] += cpu_s
            self._unshared.add(tenant)

    def share(self) -> None:
        """Tells what was spent here, and charges what was spent elsewhere since the last time. What others
        had spent before this process started was theirs to refuse."""
        with self._lock:
            told, self._unshared = {tenant: self._spent[tenant] for tenant in self._unshared}, set()
        c = computing_use.c
        try:
            if told:
                with self._database.begin(flush=False) as conn:
                    for tenant, cpu_s in sorted(told.items()):
                        row = {"cpu_s": cpu_s, "updated_at": now_s(conn)}
                        new = insert_into(conn, computing_use).values(
                            process=self._process, tenant=tenant, **row
                        )
                        conn.execute(
                            new.on_conflict_do_update(index_elements=["process", "tenant"], set_=row)
                        )
                    conn.execute(computing_use.delete().where(c.updated_at < now_s(conn) - KEPT_S))
            with self._database.read() as conn:
                query = sa.select(c.process, c.tenant, c.cpu_s).where(c.process != self._process)
                spent = {(process, tenant): cpu_s for process, tenant, cpu_s in conn.execute(query)}
        except sa.exc.SQLAlchemyError:
            with self._lock:
                self._unshared |= told.keys()
            raise
        seen, self._seen = self._seen, spent
        for (process, tenant), cpu_s in spent.items() if seen is not None else ():
            more_s = cpu_s - (seen or {}).get((process, tenant), 0.0)
            self._limit.wait_s(tenant, more_s, owes=True)
