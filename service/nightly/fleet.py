"""All watched workloads of a tenant in one table, for the pages."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from service.db.models import WAITING, labels, sessions
from service.db.schedules import UNWATCHED, WorkloadRow, list_workloads
from service.render.trends import spark_points
from tools.nightly.result import OpenProposal

SPARK_NIGHTS = 30
LABEL = "workload"
"""The label of sessions that a night started, with the workload's name."""


@dataclass(frozen=True)
class FleetWorkload:
    """One row of the fleet's table."""

    name: str
    status: str
    reason: str | None
    model: str | None
    device: str | None
    num_devices: int | None
    step_time_s: float | None
    change_ratio: float | None
    """Of the step time, if it changed."""
    wasted_device_hours_per_day: float
    lost_device_hours_per_day: float
    gained_device_hours_per_day: float
    spark: str
    """Points of an SVG polyline in a frame of 100 by 24; empty without nights."""
    spark_values: Sequence[float]
    proposal: OpenProposal | None
    waiting_session_id: str | None
    """A session that waits for an approval."""
    updated_at: float
    run_id: str | None


@dataclass(frozen=True)
class Fleet:
    workloads: Sequence[FleetWorkload]
    wasted_device_hours_per_day: float
    open_proposals: int
    approvals_waiting: int


def fleet_of(conn: sa.Connection, tenant: str) -> Fleet:
    waits = waiting_sessions(conn, tenant)
    waiting = dict(waits)
    lines = [_fleet_workload(row, waiting.get(row.name)) for row in list_workloads(conn, tenant)]
    return Fleet(
        workloads=lines,
        wasted_device_hours_per_day=sum(line.wasted_device_hours_per_day for line in lines),
        open_proposals=sum(line.proposal is not None for line in lines),
        approvals_waiting=len(waits),
    )


def waiting_sessions(conn: sa.Connection, tenant: str) -> list[tuple[str, str]]:
    """Workload and id of every session that waits for a person, the newest last."""
    query = (
        sa.select(labels.c.value, sessions.c.id)
        .join(sessions, sessions.c.id == labels.c.session_id)
        .where(labels.c.tenant == tenant, labels.c.name == LABEL, sessions.c.state == WAITING)
        .order_by(sessions.c.id)
    )
    return [(row.value, row.id) for row in conn.execute(query)]


def _fleet_workload(row: WorkloadRow, waiting: str | None) -> FleetWorkload:
    result = row.outcome
    values = result.step_times_s[-SPARK_NIGHTS:]
    return FleetWorkload(
        name=row.name,
        status=row.status,
        reason=row.reason,
        model=result.model,
        device=result.device,
        num_devices=result.num_devices,
        step_time_s=result.night.step_time_s if result.night else None,
        change_ratio=result.headline.change_ratio if result.headline else None,
        wasted_device_hours_per_day=row.wasted_device_hours_per_day,
        lost_device_hours_per_day=result.lost_device_hours_per_day,
        gained_device_hours_per_day=result.gained_device_hours_per_day,
        spark=spark_points(values) if values else "",
        spark_values=values,
        proposal=result.proposal if row.status != UNWATCHED else None,
        waiting_session_id=waiting,
        updated_at=row.updated_at,
        run_id=row.run_id,
    )
