"""Runs of schedules: each planned time once, claimed by one worker at a time, under a fence."""

import time
from dataclasses import dataclass

import sqlalchemy as sa

from service.errors import FencedError, NotFoundError
from service.store.ids import new_id
from service.store.queries import insert_into, read_page
from service.store.rows import Data
from service.store.tables import night_runs

QUEUED, RUNNING, COMPLETED, FAILED, SKIPPED = "queued", "running", "completed", "failed", "skipped"
BUSY = (QUEUED, RUNNING)
CRON, CAUGHT_UP, MANUAL = "cron", "caught_up", "manual"
MOST_CLAIMS = 10
GAVE_UP = f"{MOST_CLAIMS} workers began this run and none ended it; see their logs"
LONG = ("report", "definition")


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
    """quiet, regression or broken, when completed."""
    reason: str | None
    leg: int
    claims: int
    fence: int
    worker: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    updated_at: float
    deliveries: list[Data] | None
    definition: Data | None = None
    report: Data | None = None


def add_run(
    conn: sa.Connection,
    schedule_id: str,
    tenant: str,
    planned_at: float,
    trigger: str,
    definition: Data,
    skipped: str | None = None,
) -> RunRow | None:
    """Nothing where this planned time has its run already. A skipped one is kept with its reason."""
    now_s = time.time()
    row = {
        "id": new_id(),
        "schedule_id": schedule_id,
        "tenant": tenant,
        "planned_at": planned_at,
        "trigger": trigger,
        "state": SKIPPED if skipped else QUEUED,
        "reason": skipped,
        "leg": 1,
        "claims": 0,
        "fence": 0,
        "created_at": now_s,
        "finished_at": now_s if skipped else None,
        "updated_at": now_s,
        "definition": definition,
    }
    insert = insert_into(conn, night_runs)
    id = conn.execute(insert.values(row).on_conflict_do_nothing().returning(night_runs.c.id)).scalar()
    return get_run(conn, tenant, id) if id else None


def get_run(conn: sa.Connection, tenant: str, id: str) -> RunRow:
    query = sa.select(night_runs).where(night_runs.c.id == id, night_runs.c.tenant == tenant)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFoundError("run", id)
    return RunRow(**row._mapping)


def list_runs(
    conn: sa.Connection, tenant: str, schedule_id: str, cursor: str | None = None, limit: int = 50
) -> tuple[list[RunRow], str | None]:
    """Newest first."""
    query = sa.select(*(column for column in night_runs.c if column.name not in LONG))
    query = query.where(night_runs.c.tenant == tenant, night_runs.c.schedule_id == schedule_id)
    found, following = read_page(conn, query, night_runs.c.id, cursor, limit)
    return [RunRow(**row._mapping) for row in found], following


def find_last_run(conn: sa.Connection, schedule_id: str) -> RunRow | None:
    columns = [column for column in night_runs.c if column.name not in LONG]
    query = sa.select(*columns).where(night_runs.c.schedule_id == schedule_id)
    row = conn.execute(query.order_by(night_runs.c.id.desc()).limit(1)).one_or_none()
    return RunRow(**row._mapping) if row else None


def is_busy(conn: sa.Connection, schedule_id: str) -> bool:
    query = sa.select(night_runs.c.id).where(
        night_runs.c.schedule_id == schedule_id, night_runs.c.state.in_(BUSY)
    )
    return conn.execute(query.limit(1)).first() is not None


def claim_run(conn: sa.Connection, id: str, leg: int, worker: str) -> RunRow | None:
    """Nothing where this leg is over or the schedule is removed."""
    held = conn.execute(sa.select(night_runs).where(night_runs.c.id == id).with_for_update()).one_or_none()
    if held is None or held.state not in BUSY or held.leg != leg:
        return None
    if held.claims >= MOST_CLAIMS:
        _set(conn, id, state=FAILED, reason=GAVE_UP, fence=held.fence + 1, finished_at=time.time())
        return None
    started = {} if held.started_at is not None else {"started_at": time.time()}
    numbers = {"fence": held.fence + 1, "claims": held.claims + 1}
    _set(conn, id, state=RUNNING, worker=worker, **numbers, **started)
    return get_run(conn, held.tenant, id)


def set_run(conn: sa.Connection, row: RunRow, **columns: object) -> None:
    """Under the claim's fence: of two workers that believe they have a run, one is refused."""
    query = sa.select(night_runs.c.fence).where(night_runs.c.id == row.id)
    fence = conn.execute(query.with_for_update()).scalar()
    if fence != row.fence:
        raise FencedError(f"run {row.id} was taken over, or its schedule removed")
    if columns.get("state") in (COMPLETED, FAILED):
        columns["finished_at"] = time.time()
    _set(conn, row.id, **columns)


def next_leg(conn: sa.Connection, id: str, leg: int) -> RunRow | None:
    """For a run whose workflow is lost or given back; nothing where it has gone on meanwhile."""
    held = conn.execute(sa.select(night_runs).where(night_runs.c.id == id).with_for_update()).one_or_none()
    if held is None or held.state not in BUSY or held.leg != leg:
        return None
    _set(conn, id, state=QUEUED, leg=held.leg + 1, fence=held.fence + 1, worker=None)
    return get_run(conn, held.tenant, id)


def list_quiet(conn: sa.Connection, before_s: float | sa.ColumnElement[float]) -> list[tuple[str, int]]:
    """Busy runs nobody has written about since then: id and leg."""
    query = sa.select(night_runs.c.id, night_runs.c.leg).where(
        night_runs.c.state.in_(BUSY), night_runs.c.updated_at < before_s
    )
    return [(row.id, row.leg) for row in conn.execute(query.order_by(night_runs.c.id))]


def delete_old(conn: sa.Connection, before_s: float | sa.ColumnElement[float]) -> list[tuple[str, int]]:
    """Ended runs that were planned before then; given back with their legs."""
    old = sa.and_(night_runs.c.planned_at < before_s, night_runs.c.state.not_in(BUSY))
    gone = conn.execute(night_runs.delete().where(old).returning(night_runs.c.id, night_runs.c.leg))
    return [(row.id, row.leg) for row in gone]


def _set(conn: sa.Connection, id: str, **columns: object) -> None:
    values = {"updated_at": time.time(), **columns}
    conn.execute(night_runs.update().where(night_runs.c.id == id).values(values))
