"""Schedules as their tenant sees them. When they run is service/nightly/ticking.py's matter."""

import time
from dataclasses import dataclass

import sqlalchemy as sa

from service.errors import ConflictError, NotFoundError
from service.store.ids import is_id, new_id
from service.store.nights import leave_workloads
from service.store.queries import read_page
from service.store.rows import Data
from service.store.tables import night_runs, schedules

ACTIVE, PAUSED = "active", "paused"
ADDING_LOCK = 0x41534153
"""As an advisory lock: of two schedules with one workload, added at once, one is refused."""


@dataclass(frozen=True)
class ScheduleRow:
    id: str
    tenant: str
    owner: str
    name: str
    state: str
    reason: str | None
    """What keeps it from running as it should, in plain words."""
    created_at: float
    updated_at: float
    considered_until: float
    """Planned times up to here have been run, skipped or passed over."""
    definition: Data


def create_schedule(
    conn: sa.Connection, tenant: str, owner: str, name: str, definition: Data, now_s: float
) -> ScheduleRow:
    """Runs from now on; ConflictError where the tenant has its name or a workload of it already."""
    if find_schedule(conn, tenant, name) is not None:
        raise ConflictError(f"there is a schedule {name!r} already; remove it, or take another name", "name")
    _check_workloads(conn, tenant, definition)
    row = {"id": new_id(), "tenant": tenant, "owner": owner, "name": name, "state": ACTIVE}
    times = {"created_at": time.time(), "updated_at": time.time(), "considered_until": now_s}
    try:
        with conn.begin_nested():
            conn.execute(schedules.insert().values(**row, **times, definition=definition))
    except sa.exc.IntegrityError:
        raise ConflictError(f"there is a schedule {name!r} already", "name") from None
    return get_schedule(conn, tenant, row["id"])


def _check_workloads(conn: sa.Connection, tenant: str, definition: Data) -> None:
    """A workload's history is the tenant's, under its name: two schedules would mix two jobs in it."""
    if conn.dialect.name == "postgresql":  # SQLite has one writer at a time
        conn.execute(sa.select(sa.func.pg_advisory_xact_lock(ADDING_LOCK)))
    query = sa.select(schedules.c.name, schedules.c.definition).where(schedules.c.tenant == tenant)
    taken = {name: row.name for row in conn.execute(query) for name in _workloads(row.definition)}
    for place, name in enumerate(_workloads(definition)):
        if name in taken:
            raise ConflictError(
                f"workload {name!r} is in the schedule {taken[name]!r} already, and its history is kept "
                "under its name; give it another name here, or remove that schedule",
                f"workloads[{place}].name",
            )


def _workloads(definition: Data) -> list[str]:
    """By name; of an older release's definition, whatever it has."""
    return [one["name"] for one in definition.get("workloads") or []]


def get_schedule(conn: sa.Connection, tenant: str, id: str, lock: bool = False) -> ScheduleRow:
    """By id or by name."""
    key = schedules.c.id if is_id(id) else schedules.c.name
    query = sa.select(schedules).where(schedules.c.tenant == tenant, key == id)
    row = conn.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFoundError("schedule", id)
    return ScheduleRow(**row._mapping)


def find_schedule(conn: sa.Connection, tenant: str, name: str) -> ScheduleRow | None:
    query = sa.select(schedules).where(schedules.c.tenant == tenant, schedules.c.name == name)
    row = conn.execute(query).one_or_none()
    return ScheduleRow(**row._mapping) if row else None


def list_schedules(
    conn: sa.Connection, tenant: str, cursor: str | None = None, limit: int = 100
) -> tuple[list[ScheduleRow], str | None]:
    """Newest first."""
    query = sa.select(schedules).where(schedules.c.tenant == tenant)
    found, following = read_page(conn, query, schedules.c.id, cursor, limit)
    return [ScheduleRow(**row._mapping) for row in found], following


def list_active(conn: sa.Connection) -> list[str]:
    """Of all tenants, for the clock."""
    query = sa.select(schedules.c.id).where(schedules.c.state == ACTIVE)
    return list(conn.scalars(query.order_by(schedules.c.id)))


def lock_active(conn: sa.Connection, id: str) -> ScheduleRow | None:
    """Nothing where somebody else holds it, or it is no longer active."""
    query = sa.select(schedules).where(schedules.c.id == id, schedules.c.state == ACTIVE)
    row = conn.execute(query.with_for_update(skip_locked=True)).one_or_none()
    return ScheduleRow(**row._mapping) if row else None


def set_considered(conn: sa.Connection, id: str, until: float, reason: str | None) -> None:
    """Without `updated_at`: nobody changed anything."""
    conn.execute(schedules.update().where(schedules.c.id == id).values(considered_until=until, reason=reason))


def pause(conn: sa.Connection, tenant: str, id: str) -> ScheduleRow:
    row = get_schedule(conn, tenant, id, lock=True)
    _set(conn, row.id, state=PAUSED)
    return get_schedule(conn, tenant, row.id)


def resume(conn: sa.Connection, tenant: str, id: str, now_s: float) -> ScheduleRow:
    """From now on: nights that passed meanwhile were wanted by nobody."""
    row = get_schedule(conn, tenant, id, lock=True)
    if row.state == PAUSED:
        _set(conn, row.id, state=ACTIVE, considered_until=now_s, reason=None)
    return get_schedule(conn, tenant, row.id)


def delete_schedule(conn: sa.Connection, tenant: str, id: str) -> tuple[ScheduleRow, list[tuple[str, int]]]:
    """With its runs, which are given back with their legs; the nights of its workloads stay."""
    row = get_schedule(conn, tenant, id, lock=True)
    query = sa.select(night_runs.c.id, night_runs.c.leg).where(night_runs.c.schedule_id == row.id)
    runs = [(one.id, one.leg) for one in conn.execute(query)]
    conn.execute(schedules.delete().where(schedules.c.id == row.id))
    leave_workloads(conn, tenant, _workloads(row.definition))
    return row, runs


def _set(conn: sa.Connection, id: str, **columns: object) -> None:
    conn.execute(schedules.update().where(schedules.c.id == id).values(updated_at=time.time(), **columns))
