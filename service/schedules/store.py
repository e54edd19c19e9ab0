"""Nightly schedules, their runs, and the nights and state of each workload."""

import time
from collections.abc import Iterable

import sqlalchemy as sa
from pydantic import JsonValue
from pydantic_core import to_jsonable_python

from service.db.ids import is_id
from service.db.queries import insert_into, read_page
from service.errors import ConflictError, FencedError, NotFoundError
from service.jobs.claims import times_of
from service.jobs.model import BUSY
from service.schedules.calendar import ScheduleSpec
from service.schedules.model import (
    ACTIVE,
    PAUSED,
    SKIPPED,
    UNWATCHED,
    RunRow,
    ScheduleRow,
    Trigger,
    WorkloadRow,
    night_runs,
    nights,
    schedules,
    workloads,
)
from tools.nightly.night import Night, parse_night

MAX_NIGHTS = 120
"""Nights that a review looks at: the window, a fortnight, and four weeks in which a change is reported."""
ADDING_LOCK = 0x41534153
"""As an advisory lock: of two schedules with one workload, added at once, one is refused."""
MAX_WORKLOADS = 500
LONG = ("definition", "report")
"""Left out of lists of runs."""
LISTED = tuple(column for column in night_runs.c if column.name not in LONG)


def create_schedule(
    conn: sa.Connection, tenant: str, owner: str, spec: ScheduleSpec, now_s: float
) -> ScheduleRow:
    """Runs from now on; ConflictError if the tenant already has its name or one of its workloads."""
    definition = spec.model_dump(mode="json", by_alias=True)
    row = ScheduleRow(
        tenant=tenant, owner=owner, name=spec.name, considered_until=now_s, definition=definition
    )
    try:
        with conn.begin_nested():
            conn.execute(schedules.insert().values(to_jsonable_python(dict(row))))
    except sa.exc.IntegrityError:
        message = f"there is a schedule {row.name!r} already; remove it, or take another name"
        raise ConflictError(message, "name") from None
    # A workload's history is stored under its name: two schedules would mix two jobs in it.
    if conn.dialect.name == "postgresql":  # SQLite has one writer at a time
        conn.execute(sa.select(sa.func.pg_advisory_xact_lock(ADDING_LOCK)))
    others = sa.select(schedules).where(schedules.c.tenant == tenant, schedules.c.id != row.id)
    taken = {
        name: other.name
        for other in map(ScheduleRow.model_validate, conn.execute(others))
        for name in other.workload_names
    }
    for place, name in enumerate(row.workload_names):
        if name in taken:
            raise ConflictError(
                f"workload {name!r} is in the schedule {taken[name]!r} already, and its history is kept "
                "under its name; give it another name here, or remove that schedule",
                f"workloads[{place}].name",
            )
    return row


def get_schedule(conn: sa.Connection, tenant: str, id: str, lock: bool = False) -> ScheduleRow:
    key = schedules.c.id if is_id(id) else schedules.c.name
    query = sa.select(schedules).where(schedules.c.tenant == tenant, key == id)
    row = conn.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFoundError("schedule", id)
    return ScheduleRow.model_validate(row)


def list_schedules(
    conn: sa.Connection, tenant: str, cursor: str | None = None, limit: int = 100
) -> tuple[list[ScheduleRow], str | None]:
    """Newest first."""
    query = sa.select(schedules).where(schedules.c.tenant == tenant)
    rows, next_cursor = read_page(conn, query, schedules.c.id, cursor, limit)
    return [ScheduleRow.model_validate(row) for row in rows], next_cursor


def list_active(conn: sa.Connection) -> list[str]:
    """Schedules of all tenants, for the clock."""
    query = sa.select(schedules.c.id).where(schedules.c.state == ACTIVE)
    return list(conn.scalars(query.order_by(schedules.c.id)))


def lock_active(conn: sa.Connection, id: str) -> ScheduleRow | None:
    """None if another process has locked it, or if it is no longer active."""
    query = sa.select(schedules).where(schedules.c.id == id, schedules.c.state == ACTIVE)
    row = conn.execute(query.with_for_update(skip_locked=True)).one_or_none()
    return ScheduleRow.model_validate(row) if row else None


def set_considered(conn: sa.Connection, id: str, until: float, reason: str | None) -> None:
    """Without `updated_at`: no person changed it."""
    conn.execute(schedules.update().where(schedules.c.id == id).values(considered_until=until, reason=reason))


def pause(conn: sa.Connection, tenant: str, id: str) -> ScheduleRow:
    row = get_schedule(conn, tenant, id, lock=True)
    return _set_schedule(conn, row, state=PAUSED)


def resume(conn: sa.Connection, tenant: str, id: str, now_s: float) -> ScheduleRow:
    """From now on: nights that passed while it was paused are not caught up."""
    row = get_schedule(conn, tenant, id, lock=True)
    if row.state != PAUSED:
        return row
    return _set_schedule(conn, row, state=ACTIVE, considered_until=now_s, reason=None)


def _set_schedule(conn: sa.Connection, row: ScheduleRow, **columns: JsonValue) -> ScheduleRow:
    changed = {"updated_at": time.time(), **columns}
    conn.execute(schedules.update().where(schedules.c.id == row.id).values(changed))
    return row.model_copy(update=changed)


def delete_schedule(conn: sa.Connection, tenant: str, id: str) -> tuple[ScheduleRow, list[tuple[str, int]]]:
    """With its runs (returned with their number of dispatches); the nights of its workloads stay."""
    row = get_schedule(conn, tenant, id, lock=True)
    query = sa.select(night_runs.c.id, night_runs.c.dispatch_no).where(night_runs.c.schedule_id == row.id)
    runs = [(id, number) for id, number in conn.execute(query)]
    conn.execute(schedules.delete().where(schedules.c.id == row.id))
    # Results stay for a later schedule, but no longer count as waste.
    values = {"status": UNWATCHED, "reason": "its schedule was removed", "wasted_device_hours_per_day": 0.0}
    is_its = workloads.c.tenant == tenant, workloads.c.name.in_(row.workload_names)
    conn.execute(workloads.update().where(*is_its).values(values))
    return row, runs


def add_run(
    conn: sa.Connection,
    schedule: ScheduleRow,
    planned_at: float,
    trigger: Trigger,
    skipped: str | None = None,
) -> RunRow | None:
    """None if this planned time already has its run. A skipped one is stored with its reason."""
    row = RunRow(
        schedule_id=schedule.id,
        tenant=schedule.tenant,
        planned_at=planned_at,
        trigger=trigger,
        definition=schedule.definition,
    )
    if skipped:
        row = row.model_copy(update={"state": SKIPPED, "reason": skipped, "finished_at": row.created_at})
    insert = insert_into(conn, night_runs).values(to_jsonable_python(dict(row))).on_conflict_do_nothing()
    return row if conn.execute(insert.returning(night_runs.c.id)).scalar() else None


def get_run(conn: sa.Connection, tenant: str, id: str) -> RunRow:
    query = sa.select(night_runs).where(night_runs.c.id == id, night_runs.c.tenant == tenant)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("run", id)
    return RunRow.model_validate(row)


def list_runs(
    conn: sa.Connection, tenant: str, schedule_id: str, cursor: str | None = None, limit: int = 50
) -> tuple[list[RunRow], str | None]:
    """Newest first."""
    is_own = night_runs.c.tenant == tenant, night_runs.c.schedule_id == schedule_id
    rows, next_cursor = read_page(conn, sa.select(*LISTED).where(*is_own), night_runs.c.id, cursor, limit)
    return [RunRow.model_validate(row) for row in rows], next_cursor


def last_runs(conn: sa.Connection, schedule_ids: Iterable[str]) -> dict[str, RunRow]:
    """The newest run of each schedule that has one, in one query."""
    newest = (
        sa.select(sa.func.max(night_runs.c.id))
        .where(night_runs.c.schedule_id.in_(list(schedule_ids)))
        .group_by(night_runs.c.schedule_id)
    )
    query = sa.select(*LISTED).where(night_runs.c.id.in_(newest))
    return {run.schedule_id: run for run in map(RunRow.model_validate, conn.execute(query))}


def is_busy(conn: sa.Connection, schedule_id: str) -> bool:
    is_own = night_runs.c.schedule_id == schedule_id, night_runs.c.state.in_(BUSY)
    return conn.execute(sa.select(night_runs.c.id).where(*is_own).limit(1)).first() is not None


def find_locked_run(conn: sa.Connection, id: str) -> RunRow | None:
    """Nobody else writes about this run until the transaction ends."""
    query = sa.select(*LISTED).where(night_runs.c.id == id).with_for_update()
    row = conn.execute(query).one_or_none()
    return RunRow.model_validate(row) if row else None


def move_run(conn: sa.Connection, row: RunRow, state: str, **columns: JsonValue) -> RunRow:
    values = {**times_of(row, state), "state": state, **columns}
    conn.execute(night_runs.update().where(night_runs.c.id == row.id).values(values))
    return get_run(conn, row.tenant, row.id)


def set_run(conn: sa.Connection, row: RunRow, **columns: object) -> None:
    """Under the claim's fence: of two workers that believe they have a run, one is refused."""
    query = sa.select(night_runs.c.fence).where(night_runs.c.id == row.id)
    if conn.execute(query.with_for_update()).scalar() != row.fence:
        raise FencedError(f"run {row.id} was taken over, or its schedule removed")
    values = to_jsonable_python({**times_of(row, str(columns.get("state", row.state))), **columns})
    conn.execute(night_runs.update().where(night_runs.c.id == row.id).values(values))


def delete_old(conn: sa.Connection, before_s: float | sa.ColumnElement[float]) -> list[tuple[str, int]]:
    """Ended runs that were planned before then; returns id and number of dispatches of each."""
    old = sa.and_(night_runs.c.planned_at < before_s, night_runs.c.state.not_in(BUSY))
    deleted = night_runs.delete().where(old).returning(night_runs.c.id, night_runs.c.dispatch_no)
    return [(id, number) for id, number in conn.execute(deleted)]


def add_night(conn: sa.Connection, tenant: str, workload: str, night: Night) -> bool:
    """False if this profile is known already. Idempotent."""
    row = {"tenant": tenant, "workload": workload, "key": night.key, "at": night.at}
    insert = insert_into(conn, nights).values(
        **row, recorded_at=time.time(), record=night.model_dump(mode="json")
    )
    added = conn.execute(insert.on_conflict_do_nothing().returning(nights.c.key)).scalar()
    return added is not None


def list_nights(conn: sa.Connection, tenant: str, workload: str, limit: int = MAX_NIGHTS) -> list[Night]:
    """The last ones, oldest first."""
    query = sa.select(nights.c.record).where(nights.c.tenant == tenant, nights.c.workload == workload)
    records = conn.scalars(query.order_by(nights.c.at.desc(), nights.c.key.desc()).limit(limit))
    return [parse_night(record) for record in records][::-1]


def set_workload(conn: sa.Connection, row: WorkloadRow) -> None:
    """Replaces the result of the last night."""
    values = to_jsonable_python(dict(row))
    result = {name: value for name, value in values.items() if name not in ("tenant", "name")}
    insert = insert_into(conn, workloads).values(values)
    conn.execute(insert.on_conflict_do_update(index_elements=["tenant", "name"], set_=result))


def find_workload(conn: sa.Connection, tenant: str, name: str) -> WorkloadRow | None:
    query = sa.select(workloads).where(workloads.c.tenant == tenant, workloads.c.name == name)
    row = conn.execute(query).one_or_none()
    return WorkloadRow.model_validate(row) if row else None


def list_workloads(conn: sa.Connection, tenant: str) -> list[WorkloadRow]:
    """The most wasteful first."""
    query = sa.select(workloads).where(workloads.c.tenant == tenant)
    ordered = query.order_by(workloads.c.wasted_device_hours_per_day.desc(), workloads.c.name)
    return [WorkloadRow.model_validate(row) for row in conn.execute(ordered.limit(MAX_WORKLOADS))]


def forget_workload(conn: sa.Connection, tenant: str, name: str) -> None:
    done = conn.execute(workloads.delete().where(workloads.c.tenant == tenant, workloads.c.name == name))
    gone = conn.execute(nights.delete().where(nights.c.tenant == tenant, nights.c.workload == name))
    if not done.rowcount and not gone.rowcount:
        raise NotFoundError("workload", name)
