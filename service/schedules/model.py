"""Schedules, their runs, and what nights said about each workload: a row is its table and what is sent."""

import time
from typing import Annotated, Literal, get_args

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from service.db.ids import new_id
from service.db.tables import Digest, Id, JsonColumn, Timestamp, Word, columns_of, key, metadata, required
from service.jobs.model import QUEUED
from service.strict_json import JsonObject
from tools.nightly.night import StoredResult
from tools.nightly.result import NightOutcome, NightReport, NightResult

ACTIVE, PAUSED = "active", "paused"
UNWATCHED = "unwatched"
SKIPPED = "skipped"
Trigger = Literal["cron", "caught_up", "manual"]
CRON, CAUGHT_UP, MANUAL = get_args(Trigger)
RunState = Literal["queued", "running", "completed", "failed", "skipped"]


class _Row(BaseModel):
    model_config = ConfigDict(
        frozen=True, from_attributes=True, json_schema_serialization_defaults_required=True
    )


class ScheduleRow(_Row):
    """Workloads, and when they are looked at, as the database holds them."""

    id: Annotated[str, Id] = Field(default_factory=new_id)
    tenant: str
    owner: str
    name: str
    state: Annotated[Literal["active", "paused"], Word] = "active"
    reason: str | None = None
    created_at: Timestamp = Field(default_factory=time.time)
    updated_at: Timestamp = Field(default_factory=time.time)
    considered_until: float
    """Planned times up to here have been run, skipped or passed over."""
    definition: JsonObject
    """As its author wrote it; one of an older release may be one that this release cannot parse."""

    @property
    def workload_names(self) -> list[str]:
        """The definition of an older release may lack them."""
        workloads = self.definition.get("workloads")
        entries = workloads if isinstance(workloads, list) else []
        return [str(entry["name"]) for entry in entries if isinstance(entry, dict)]


class Delivery(StoredResult):
    """How the delivery to one recipient ended."""

    kind: str
    to: str
    """Without anything secret: of an address, its number and host."""
    ok: bool
    answer: str
    at: float


class RunRow(_Row):
    """One night of a schedule."""

    id: Annotated[str, Id] = Field(default_factory=new_id)
    schedule_id: Annotated[str, Id]
    planned_at: Timestamp = Field(description="with the schedule this is the run's identity")
    trigger: Annotated[Trigger, Word]
    state: Annotated[RunState, Word] = QUEUED
    outcome: Annotated[NightOutcome | None, Word] = None
    reason: str | None = Field(
        None, description="why it was skipped or failed, or which recipient it did not reach"
    )
    created_at: Timestamp = Field(default_factory=time.time)
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None
    deliveries: list[Delivery] | None = None
    tenant: str = Field(exclude=True)
    dispatch_no: int = Field(1, exclude=True)
    claims: int = Field(0, exclude=True)
    fence: int = Field(0, exclude=True)
    worker: str | None = Field(None, exclude=True)
    updated_at: Timestamp = Field(default_factory=time.time, exclude=True)
    definition: JsonObject | None = Field(None, exclude=True)
    """The schedule's when it was planned; lists leave it out, and the report too."""
    report: NightReport | None = Field(None, exclude=True)


class WorkloadRow(_Row):
    """A workload as the last run left it."""

    tenant: str
    name: str
    status: Annotated[str, Word]
    reason: str | None
    wasted_device_hours_per_day: float
    updated_at: Timestamp
    run_id: Annotated[str | None, Id]
    session_id: Annotated[str | None, Id]
    """The session whose proposal is open, if the service ran it."""
    outcome: NightResult


class Schedule(_Row):
    """Workloads, and when they are looked at."""

    id: str
    name: str
    owner: str
    state: Literal["active", "paused"]
    reason: str | None = Field(description="what keeps it from running as it should")
    cron: str
    zone: str
    next_at: Timestamp | None = Field(description="the next planned time; null while it is paused")
    last_run: RunRow | None
    created_at: Timestamp
    updated_at: Timestamp
    definition: JsonObject = Field(description="as it was given; of addresses only the host")


schedules = sa.Table(
    "schedules",
    metadata,
    *columns_of(ScheduleRow),
    sa.UniqueConstraint("tenant", "name", name="schedules_name"),
    sa.Index("schedules_by_state", "state"),
)

night_runs = sa.Table(
    "night_runs",
    metadata,
    *columns_of(RunRow),
    sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], ondelete="CASCADE"),
    sa.UniqueConstraint("schedule_id", "planned_at", name="night_runs_once"),
    sa.Index("night_runs_by_schedule", "schedule_id", "id"),
    sa.Index("night_runs_by_state", "state", "updated_at"),
)

nights = sa.Table(
    "nights",
    metadata,
    *key(sa.Text, "tenant", "workload"),
    *key(Digest, "key"),
    *required(sa.Double, "at", "recorded_at"),
    *required(JsonColumn, "record"),
    sa.Index("nights_by_time", "tenant", "workload", "at"),
)

workloads = sa.Table(
    "workloads",
    metadata,
    *columns_of(WorkloadRow),
    sa.PrimaryKeyConstraint("tenant", "name"),
    sa.Index("workloads_by_waste", "tenant", "wasted_device_hours_per_day"),
)
