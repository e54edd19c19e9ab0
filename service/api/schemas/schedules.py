"""Schedules, their runs, and the workloads they look after."""

from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field

from service.api.schemas.public import Public
from service.api.schemas.scenario import EXAMPLE
from service.api.schemas.sessions import moment
from service.client_schedules import Run, Schedule
from service.nightly.definition import parse
from service.nightly.schedules.cron import parse_cron
from service.nightly.schedules.spec import ScheduleSpec
from service.store.night_runs import RunRow
from service.store.nights import WorkloadRow
from service.store.schedules import ACTIVE, ScheduleRow
from tools.errors import InputError

PATH = "/v1/schedules"


class ScheduleCreate(ScheduleSpec):
    """A nightly run: which workloads, when, and whom to tell."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "name": "pretraining",
                    "cron": "30 5 * * *",
                    "zone": "Europe/Berlin",
                    "workloads": [{"name": "llama-70b", "scenario": EXAMPLE, "uploads": "llama-70b-*"}],
                    "recipients": {"emails": ["team@example.com"], "when": "alarm"},
                }
            ]
        },
    )


class RunPublic(Run, Public):
    """One night of a schedule."""

    trigger: Literal["cron", "caught_up", "manual"]
    outcome: Literal["quiet", "regression", "broken"] | None


class RunPage(BaseModel):
    items: list[RunPublic]
    next_cursor: str | None


class SchedulePublic(Schedule, Public):
    """Workloads, and when they are looked at."""

    last_run: RunPublic | None


class SchedulePage(BaseModel):
    items: list[SchedulePublic]
    next_cursor: str | None


class WorkloadPublic(BaseModel):
    """A workload as the last run left it."""

    name: str
    status: str = Field(description="regressed, slower, suspected, quiet, ..., stale, unwatched or broken")
    reason: str | None
    wasted_device_hours_per_day: float
    updated_at: datetime
    run_id: str | None
    session_id: str | None = Field(description="of the proposal that is open")
    outcome: dict[str, Any] = Field(description="all that was said of it")


class WorkloadList(BaseModel):
    items: list[WorkloadPublic] = Field(description="the most wasteful first")


def public_schedule(row: ScheduleRow, last: RunRow | None, now_s: float) -> SchedulePublic:
    definition = row.definition
    return SchedulePublic.model_validate(
        {
            **{name: getattr(row, name) for name in ("id", "name", "owner", "state", "reason")},
            "cron": definition.get("cron", ""),
            "zone": definition.get("zone", ""),
            "next_at": moment(_next(row, now_s)),
            "last_run": public_run(last) if last else None,
            "created_at": moment(row.created_at),
            "updated_at": moment(row.updated_at),
            "definition": _masked(definition),
        }
    )


def public_run(row: RunRow) -> RunPublic:
    own = {name: getattr(row, name) for name in RunPublic.model_fields}
    times = {name: moment(own[name]) for name in ("planned_at", "created_at", "started_at", "finished_at")}
    return RunPublic.model_validate({**own, **times})


def public_workload(row: WorkloadRow) -> WorkloadPublic:
    own = {name: getattr(row, name) for name in WorkloadPublic.model_fields}
    return WorkloadPublic.model_validate({**own, "updated_at": moment(row.updated_at)})


def _next(row: ScheduleRow, now_s: float) -> float | None:
    """A schedule kept by an older release may be one that this one cannot read."""
    if row.state != ACTIVE:
        return None
    try:
        spec = parse(ScheduleSpec, row.definition)
        return parse_cron(spec.cron, spec.zone).next_after(now_s)
    except InputError:
        return None


def _masked(definition: dict[str, Any]) -> dict[str, Any]:
    recipients = dict(definition.get("recipients") or {})
    for name in ("webhooks", "slack"):
        recipients[name] = [f"{_host(url)}/..." for url in recipients.get(name) or []]
    return {**definition, "recipients": recipients}


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"
