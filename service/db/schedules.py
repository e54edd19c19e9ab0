"""Nightly schedules, their runs, and the nights and state of each workload."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import sqlalchemy as sa
from pydantic import BaseModel, TypeAdapter

from service.db.engine import insert_into, read_page
from service.db.models import is_id, new_id, night_runs, nights, schedules, workloads
from service.errors import ConflictError, FencedError, NotFoundError
from service.strict_json import JsonObject
from tools.nightly.night import Night, StoredResult, parse_night
from tools.nightly.result import NightReport, NightResult

UNWATCHED = "unwatched"
MAX_NIGHTS = 120
"""Nights that a review looks at: the window, a fortnight, and four weeks in which a change is reported."""
Definition = JsonObject
"""A schedule as its author wrote it; one of an older release may be one that this release cannot parse."""
ACTIVE, PAUSED = "active", "paused"
ADDING_LOCK = 0x41534153
"""As an advisory lock: of two schedules with one workload, added at once, one is refused."""
QUEUED, RUNNING, COMPLETED, FAILED, SKIPPED = "queued", "running", "completed", "failed", "skipped"
BUSY = (QUEUED, RUNNING)
CRON, CAUGHT_UP, MANUAL, MAX_CLAIMS = "cron", "caught_up", "manual", 10
GAVE_UP = f"{MAX_CLAIMS} workers began this run and none ended it; see their logs"
LONG = ("definition", "report")
"""Left out of lists, and therefore the last fields of a row."""


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
    definition: Definition


def create_schedule(
    conn: sa.Connection, tenant: str, owner: str, name: str, definition: Definition, now_s: float
) -> ScheduleRow:
    """Runs from now on; ConflictError if the tenant already has its name or one of its workloads."""
    row = {"id": new_id(), "tenant": tenant, "owner": owner, "name": name, "state": ACTIVE}
    times = {"created_at": time.time(), "updated_at": time.time(), "considered_until": now_s}
    try:
        with conn.begin_nested():
            conn.execute(schedules.insert().values(**row, **times, definition=definition))
    except sa.exc.IntegrityError:
        message = f"there is a schedule {name!r} already; remove it, or take another name"
        raise ConflictError(message, "name") from None
    _check_workloads(conn, tenant, name, definition)
    return get_schedule(conn, tenant, row["id"])


def _check_workloads(conn: sa.Connection, tenant: str, schedule: str, definition: Definition) -> None:
    """A workload's history is stored under its name: two schedules would mix two jobs in it."""
    if conn.dialect.name == "postgresql":  # SQLite has one writer at a time
        conn.execute(sa.select(sa.func.pg_advisory_xact_lock(ADDING_LOCK)))
    others = schedules.c.tenant == tenant, schedules.c.name != schedule
    query = sa.select(schedules.c.name, schedules.c.definition).where(*others)
    taken = {name: row.name for row in conn.execute(query) for name in workload_names(row.definition)}
    for place, name in enumerate(workload_names(definition)):
        if name in taken:
            raise ConflictError(
                f"workload {name!r} is in the schedule {taken[name]!r} already, and its history is kept "
                "under its name; give it another name here, or remove that schedule",
                f"workloads[{place}].name",
            )


def workload_names(definition: Definition) -> list[str]:
    """By name; of an older release's definition, whatever it has."""
    workloads = definition.get("workloads")
    entries = workloads if isinstance(workloads, list) else []
    return [str(entry["name"]) for entry in entries if isinstance(entry, dict)]


def get_schedule(conn: sa.Connection, tenant: str, id: str, lock: bool = False) -> ScheduleRow:
    """By id or by name."""
    key = schedules.c.id if is_id(id) else schedules.c.name
    query = sa.select(schedules).where(schedules.c.tenant == tenant, key == id)
    row = conn.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFoundError("schedule", id)
    return ScheduleRow(**row._mapping)


def list_schedules(
    conn: sa.Connection, tenant: str, cursor: str | None = None, limit: int = 100
) -> tuple[list[ScheduleRow], str | None]:
    """Newest first."""
    query = sa.select(schedules).where(schedules.c.tenant == tenant)
    rows, next_cursor = read_page(conn, query, schedules.c.id, cursor, limit)
    return [ScheduleRow(**row._mapping) for row in rows], next_cursor


def list_active(conn: sa.Connection) -> list[str]:
    """Of all tenants, for the clock."""
    query = sa.select(schedules.c.id).where(schedules.c.state == ACTIVE)
    return list(conn.scalars(query.order_by(schedules.c.id)))


def lock_active(conn: sa.Connection, id: str) -> ScheduleRow | None:
    """None if another process has locked it, or if it is no longer active."""
    query = sa.select(schedules).where(schedules.c.id == id, schedules.c.state == ACTIVE)
    row = conn.execute(query.with_for_update(skip_locked=True)).one_or_none()
    return ScheduleRow(**row._mapping) if row else None


def set_considered(conn: sa.Connection, id: str, until: float, reason: str | None) -> None:
    """Without `updated_at`: no person changed it."""
    conn.execute(schedules.update().where(schedules.c.id == id).values(considered_until=until, reason=reason))


def pause(conn: sa.Connection, tenant: str, id: str) -> ScheduleRow:
    row = get_schedule(conn, tenant, id, lock=True)
    _set_schedule(conn, row.id, state=PAUSED)
    return get_schedule(conn, tenant, row.id)


def resume(conn: sa.Connection, tenant: str, id: str, now_s: float) -> ScheduleRow:
    """From now on: nights that passed while it was paused are not caught up."""
    row = get_schedule(conn, tenant, id, lock=True)
    if row.state == PAUSED:
        _set_schedule(conn, row.id, state=ACTIVE, considered_until=now_s, reason=None)
    return get_schedule(conn, tenant, row.id)


def delete_schedule(conn: sa.Connection, tenant: str, id: str) -> tuple[ScheduleRow, list[tuple[str, int]]]:
    """With its runs (returned with their number of dispatches); the nights of its workloads stay."""
    row = get_schedule(conn, tenant, id, lock=True)
    query = sa.select(night_runs.c.id, night_runs.c.dispatch_no).where(night_runs.c.schedule_id == row.id)
    runs = [(id, number) for id, number in conn.execute(query)]
    conn.execute(schedules.delete().where(schedules.c.id == row.id))
    unwatch_workloads(conn, tenant, workload_names(row.definition))
    return row, runs


def _set_schedule(conn: sa.Connection, id: str, **columns: object) -> None:
    conn.execute(schedules.update().where(schedules.c.id == id).values(updated_at=time.time(), **columns))


class Delivery(StoredResult):
    """How the delivery to one recipient ended."""

    kind: str
    to: str
    """Without anything secret: of an address, its number and host."""
    ok: bool
    answer: str
    at: float


DELIVERIES: TypeAdapter[list[Delivery] | None] = TypeAdapter(list[Delivery] | None)


@dataclass(frozen=True)
class RunRow:
    """A list leaves `report` and `definition` out: they are None there."""

    id: str
    schedule_id: str
    tenant: str
    planned_at: float
    trigger: str
    state: str
    outcome: str | None
    """quiet, slower, regression or broken, when completed."""
    reason: str | None
    dispatch_no: int
    claims: int
    fence: int
    worker: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    updated_at: float
    deliveries: list[Delivery] | None
    definition: Definition | None = None
    report: NightReport | None = None


def add_run(
    conn: sa.Connection,
    schedule_id: str,
    tenant: str,
    planned_at: float,
    trigger: str,
    definition: Definition,
    skipped: str | None = None,
) -> RunRow | None:
    """None if this planned time already has its run. A skipped one is stored with its reason."""
    now_s = time.time()
    identity = {"id": new_id(), "schedule_id": schedule_id, "tenant": tenant, "planned_at": planned_at}
    state = {"state": SKIPPED if skipped else QUEUED, "reason": skipped, "trigger": trigger}
    numbers = {"dispatch_no": 1, "claims": 0, "fence": 0}
    times = {"created_at": now_s, "updated_at": now_s, "finished_at": now_s if skipped else None}
    values = insert_into(conn, night_runs).values(
        **identity, **state, **numbers, **times, definition=definition
    )
    id = conn.execute(values.on_conflict_do_nothing().returning(night_runs.c.id)).scalar()
    return get_run(conn, tenant, id) if id else None


RUN_COLUMNS = tuple(night_runs.c[field.name] for field in fields(RunRow))
LISTED_RUN_COLUMNS = RUN_COLUMNS[: -len(LONG)]


def get_run(conn: sa.Connection, tenant: str, id: str) -> RunRow:
    query = sa.select(*RUN_COLUMNS).where(night_runs.c.id == id, night_runs.c.tenant == tenant)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("run", id)
    return _run_row(row)


def _run_row(row: Sequence[Any]) -> RunRow:
    stored = RunRow(*row)
    return replace(
        stored,
        deliveries=DELIVERIES.validate_python(stored.deliveries),
        report=None if stored.report is None else NightReport.model_validate(stored.report),
    )


def list_runs(
    conn: sa.Connection, tenant: str, schedule_id: str, cursor: str | None = None, limit: int = 50
) -> tuple[list[RunRow], str | None]:
    """Newest first."""
    is_own = night_runs.c.tenant == tenant, night_runs.c.schedule_id == schedule_id
    query = sa.select(*LISTED_RUN_COLUMNS).where(*is_own)
    rows, next_cursor = read_page(conn, query, night_runs.c.id, cursor, limit)
    return [_run_row(row) for row in rows], next_cursor


def last_runs(conn: sa.Connection, schedule_ids: Iterable[str]) -> dict[str, RunRow]:
    """The newest run of each schedule that has one, in one query."""
    newest = (
        sa.select(sa.func.max(night_runs.c.id))
        .where(night_runs.c.schedule_id.in_(list(schedule_ids)))
        .group_by(night_runs.c.schedule_id)
    )
    query = sa.select(*LISTED_RUN_COLUMNS).where(night_runs.c.id.in_(newest))
    return {run.schedule_id: run for run in (_run_row(row) for row in conn.execute(query))}


def is_busy(conn: sa.Connection, schedule_id: str) -> bool:
    is_own = night_runs.c.schedule_id == schedule_id, night_runs.c.state.in_(BUSY)
    return conn.execute(sa.select(night_runs.c.id).where(*is_own).limit(1)).first() is not None


def claim_run(conn: sa.Connection, id: str, worker: str, dispatch_no: int) -> RunRow | None:
    """None if this dispatch is over or the schedule is removed."""
    row = _lock_busy_run(conn, id, dispatch_no)
    if row is None:
        return None
    if row.claims >= MAX_CLAIMS:
        _set_run(conn, id, state=FAILED, reason=GAVE_UP, fence=row.fence + 1, finished_at=time.time())
        return None
    started = {} if row.started_at is not None else {"started_at": time.time()}
    numbers = {"fence": row.fence + 1, "claims": row.claims + 1}
    _set_run(conn, id, state=RUNNING, worker=worker, **numbers, **started)
    return get_run(conn, row.tenant, id)


def _lock_busy_run(conn: sa.Connection, id: str, dispatch_no: int) -> RunRow | None:
    query = sa.select(*LISTED_RUN_COLUMNS).where(night_runs.c.id == id).with_for_update()
    columns = conn.execute(query).one_or_none()
    row = _run_row(columns) if columns else None
    return row if row and row.state in BUSY and row.dispatch_no == dispatch_no else None


def set_run(conn: sa.Connection, row: RunRow, **columns: object) -> None:
    """Under the claim's fence: of two workers that believe they have a run, one is refused."""
    query = sa.select(night_runs.c.fence).where(night_runs.c.id == row.id)
    fence = conn.execute(query.with_for_update()).scalar()
    if fence != row.fence:
        raise FencedError(f"run {row.id} was taken over, or its schedule removed")
    if columns.get("state") in (COMPLETED, FAILED):
        columns["finished_at"] = time.time()
    _set_run(conn, row.id, **columns)


def next_dispatch(conn: sa.Connection, id: str, dispatch_no: int) -> RunRow | None:
    """For a run whose workflow is lost or handed back; None if it has gone on meanwhile."""
    row = _lock_busy_run(conn, id, dispatch_no)
    if row is None:
        return None
    _set_run(conn, id, state=QUEUED, dispatch_no=row.dispatch_no + 1, fence=row.fence + 1, worker=None)
    return get_run(conn, row.tenant, id)


def delete_old(conn: sa.Connection, before_s: float | sa.ColumnElement[float]) -> list[tuple[str, int]]:
    """Ended runs that were planned before then; returns id and number of dispatches of each."""
    old = sa.and_(night_runs.c.planned_at < before_s, night_runs.c.state.not_in(BUSY))
    deleted = night_runs.delete().where(old).returning(night_runs.c.id, night_runs.c.dispatch_no)
    return [(id, number) for id, number in conn.execute(deleted)]


def _set_run(conn: sa.Connection, id: str, **columns: object) -> None:
    values = {"updated_at": time.time(), **{name: _to_json(value) for name, value in columns.items()}}
    conn.execute(night_runs.update().where(night_runs.c.id == id).values(values))


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
    """The session whose proposal is open, if the service ran it."""
    outcome: NightResult


def add_night(conn: sa.Connection, tenant: str, workload: str, night: Night) -> bool:
    """False if this profile is known already. Idempotent."""
    insert = insert_into(conn, nights)
    row = {"tenant": tenant, "workload": workload, "key": night.key, "at": night.at}
    values = insert.values(**row, recorded_at=time.time(), record=night.model_dump(mode="json"))
    added = conn.execute(values.on_conflict_do_nothing().returning(nights.c.key)).scalar()
    return added is not None


def list_nights(conn: sa.Connection, tenant: str, workload: str, limit: int = MAX_NIGHTS) -> list[Night]:
    """The last ones, oldest first."""
    query = sa.select(nights.c.record).where(nights.c.tenant == tenant, nights.c.workload == workload)
    records = conn.scalars(query.order_by(nights.c.at.desc(), nights.c.key.desc()).limit(limit))
    return [parse_night(record) for record in records][::-1]


def set_workload(conn: sa.Connection, row: WorkloadRow) -> None:
    """Replaces the result of the last night."""
    insert = insert_into(conn, workloads)
    values = {name: _to_json(getattr(row, name)) for name in WorkloadRow.__dataclass_fields__}
    result = {name: value for name, value in values.items() if name not in ("tenant", "name")}
    conn.execute(insert.values(values).on_conflict_do_update(index_elements=["tenant", "name"], set_=result))


def find_workload(conn: sa.Connection, tenant: str, name: str) -> WorkloadRow | None:
    query = sa.select(workloads).where(workloads.c.tenant == tenant, workloads.c.name == name)
    row = conn.execute(query).one_or_none()
    return _workload_row(row) if row else None


def list_workloads(conn: sa.Connection, tenant: str) -> list[WorkloadRow]:
    """The most wasteful first."""
    query = sa.select(workloads).where(workloads.c.tenant == tenant)
    ordered = query.order_by(workloads.c.wasted_device_hours_per_day.desc(), workloads.c.name).limit(500)
    return [_workload_row(row) for row in conn.execute(ordered)]


def _workload_row(row: sa.Row[Any]) -> WorkloadRow:
    return WorkloadRow(**{**row._mapping, "outcome": NightResult.model_validate(row.outcome)})


def _to_json(value: object) -> object:
    if isinstance(value, list):
        return [_to_json(part) for part in value]
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def unwatch_workloads(conn: sa.Connection, tenant: str, names: Sequence[str]) -> None:
    """No schedule has them any more: results stay for a later one, but no longer count as waste."""
    values = {"status": UNWATCHED, "reason": "its schedule was removed", "wasted_device_hours_per_day": 0.0}
    update = workloads.update().where(workloads.c.tenant == tenant, workloads.c.name.in_(names))
    conn.execute(update.values(values))


def forget_workload(conn: sa.Connection, tenant: str, name: str) -> None:
    """With its nights."""
    done = conn.execute(workloads.delete().where(workloads.c.tenant == tenant, workloads.c.name == name))
    gone = conn.execute(nights.delete().where(nights.c.tenant == tenant, nights.c.workload == name))
    if not done.rowcount and not gone.rowcount:
        raise NotFoundError("workload", name)
