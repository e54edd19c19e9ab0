"""/v1/schedules: nightly schedules; their runs and workloads are in runs.py."""

from datetime import datetime
from typing import Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from service.api.deps import AppDep, Cursor, Id, Limit, Reader, StrictRoute, Submitter
from service.api.runs import RunPublic, public_run
from service.db.schedules import Definition
from service.nightly.schedule import ScheduleSpec
from service.nightly.schedules import Schedule
from service.schemas import EXAMPLE, Public
from service.strict_json import JsonObject

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


class SchedulePublic(Public):
    """Workloads, and when they are looked at."""

    id: str
    name: str
    owner: str
    state: Literal["active", "paused"]
    reason: str | None = Field(description="what keeps it from running as it should")
    cron: str
    zone: str
    next_at: datetime | None = Field(description="the next planned time; null while it is paused")
    last_run: RunPublic | None
    created_at: datetime
    updated_at: datetime
    definition: JsonObject = Field(description="as it was given; of addresses only the host")


class SchedulePage(BaseModel):
    items: list[SchedulePublic]
    next_cursor: str | None


def public_schedule(schedule: Schedule) -> SchedulePublic:
    definition = schedule.row.definition
    return SchedulePublic.model_validate(
        {
            **vars(schedule.row),
            "cron": definition.get("cron", ""),
            "zone": definition.get("zone", ""),
            "next_at": schedule.next_at,
            "last_run": schedule.last_run,
            "definition": _mask_addresses(definition),
        }
    )


def _mask_addresses(definition: Definition) -> Definition:
    stated = definition.get("recipients")
    recipients = dict(stated) if isinstance(stated, dict) else {}
    for name in ("webhooks", "slack"):
        urls = recipients.get(name)
        recipients[name] = [f"{_host(str(url))}/..." for url in urls] if isinstance(urls, list) else []
    return {**definition, "recipients": recipients}


def _host(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}"


router = APIRouter(prefix=PATH, tags=["schedules"], route_class=StrictRoute)


@router.post("", status_code=201, summary="Register workloads to be looked at by the clock")
def add(spec: ScheduleCreate, app: AppDep, caller: Submitter, response: Response) -> SchedulePublic:
    """`traces` and `metrics` are paths of the server and need the scope operator; `uploads` need none."""
    schedule = app.schedules.add(caller, spec)
    response.headers["Location"] = f"{PATH}/{schedule.row.id}"
    return public_schedule(schedule)


@router.get("", summary="List schedules, newest first")
def list_all(app: AppDep, caller: Reader, cursor: Cursor = None, limit: Limit = 100) -> SchedulePage:
    schedules, next_cursor = app.schedules.list_all(caller, cursor, limit)
    return SchedulePage(items=[public_schedule(item) for item in schedules], next_cursor=next_cursor)


@router.get("/{id}", summary="One schedule, by id or name")
def get_one(id: Id, app: AppDep, caller: Reader) -> SchedulePublic:
    return public_schedule(app.schedules.get(caller, id))


@router.delete("/{id}", status_code=204, summary="Remove a schedule and its runs")
def remove(id: Id, app: AppDep, caller: Submitter) -> None:
    """The history of its workloads stays."""
    app.schedules.remove(caller, id)


@router.post("/{id}/pause", summary="Run no more nights")
def pause_one(id: Id, app: AppDep, caller: Submitter) -> SchedulePublic:
    return public_schedule(app.schedules.pause(caller, id))


@router.post("/{id}/resume", summary="Run nights again, from now on")
def resume_one(id: Id, app: AppDep, caller: Submitter) -> SchedulePublic:
    return public_schedule(app.schedules.resume(caller, id))


@router.post("/{id}/run", status_code=202, summary="Run it now, whatever the clock says")
def run_once(id: Id, app: AppDep, caller: Submitter) -> RunPublic:
    return public_run(app.schedules.run(caller, id))
