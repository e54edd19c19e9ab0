"""The nights of every workload, each profile once, and what was last said of each workload."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from service.errors import NotFoundError
from service.store.queries import insert_into
from service.store.rows import Data
from service.store.tables import nights, workloads
from tools.nightly.night import Night, night_from_data, night_to_data

UNWATCHED = "unwatched"
KEPT = 120
"""Nights that a review looks at: the window, a fortnight, and four weeks in which a change is told."""


@dataclass(frozen=True)
class WorkloadRow:
    """A workload as the last run left it."""

    tenant: str
    name: str
    status: str
    reason: str | None
    wasted_device_hours_per_day: float
    updated_at: float
    run_id: str | None
    session_id: str | None
    """The session whose proposal is open, where the service ran it."""
    outcome: Data


def add_night(conn: sa.Connection, tenant: str, workload: str, night: Night) -> bool:
    """False where this profile is known already: a run that is repeated changes nothing."""
    insert = insert_into(conn, nights)
    row = {"tenant": tenant, "workload": workload, "key": night.key, "at": night.at}
    values = insert.values(**row, recorded_at=time.time(), record=night_to_data(night))
    done = conn.execute(values.on_conflict_do_nothing().returning(nights.c.key)).scalar()
    return done is not None


def list_nights(conn: sa.Connection, tenant: str, workload: str, limit: int = KEPT) -> list[Night]:
    """The last ones, oldest first."""
    query = sa.select(nights.c.record).where(nights.c.tenant == tenant, nights.c.workload == workload)
    found = conn.scalars(query.order_by(nights.c.at.desc(), nights.c.key.desc()).limit(limit))
    return [night_from_data(record) for record in found][::-1]


def set_workload(conn: sa.Connection, row: WorkloadRow) -> None:
    """In place of what was said before."""
    insert = insert_into(conn, workloads)
    values = {name: getattr(row, name) for name in WorkloadRow.__dataclass_fields__}
    said = {name: value for name, value in values.items() if name not in ("tenant", "name")}
    conn.execute(insert.values(values).on_conflict_do_update(index_elements=["tenant", "name"], set_=said))


def find_workload(conn: sa.Connection, tenant: str, name: str) -> WorkloadRow | None:
    query = sa.select(workloads).where(workloads.c.tenant == tenant, workloads.c.name == name)
    row = conn.execute(query).one_or_none()
    return WorkloadRow(**row._mapping) if row else None


def list_workloads(conn: sa.Connection, tenant: str, limit: int = 500) -> list[WorkloadRow]:
    """The most wasteful first."""
    query = sa.select(workloads).where(workloads.c.tenant == tenant)
    ordered = query.order_by(workloads.c.wasted_device_hours_per_day.desc(), workloads.c.name).limit(limit)
    return [WorkloadRow(**row._mapping) for row in conn.execute(ordered)]


def leave_workloads(conn: sa.Connection, tenant: str, names: Sequence[str]) -> None:
    """Nobody looks after them any more: what was said stays for a later schedule, but counts as no waste."""
    told = {"status": UNWATCHED, "reason": "its schedule was removed", "wasted_device_hours_per_day": 0.0}
    conn.execute(
        workloads.update().where(workloads.c.tenant == tenant, workloads.c.name.in_(names)).values(told)
    )


def forget_workload(conn: sa.Connection, tenant: str, name: str) -> None:
    """With its nights."""
    done = conn.execute(workloads.delete().where(workloads.c.tenant == tenant, workloads.c.name == name))
    gone = conn.execute(nights.delete().where(nights.c.tenant == tenant, nights.c.workload == name))
    if not done.rowcount and not gone.rowcount:
        raise NotFoundError("workload", name)
