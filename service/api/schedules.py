"""/v1/schedules: nightly schedules; their runs and workloads are in runs.py."""

from datetime import datetime
from typing import Any, Literal
from urllib.parse import urlsplit

import sqlalchemy as sa
from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from graph.request import parse_request
from service.addresses import parse_target
from service.api.deps import (
    AppDep,
    Cursor,
    Id,
    Limit,
    Reader,
    StrictRoute,
    Submitter,
    get_request_id,
)
from service.api.runs import RunPublic, public_run
from service.api.state import AppState
from service.auth import Caller
from service.db.access import record
from service.db.schedules import (
    ACTIVE,
    Definition,
    RunRow,
    ScheduleRow,
    create_schedule,
    delete_schedule,
    get_schedule,
    last_runs,
    list_schedules,
    pause,
    resume,
)
from service.nightly.config import parse
from service.nightly.dispatch import database_clock, run_now
from service.nightly.schedule import ScheduleSpec, check_schedule, parse_cron, qualify_field
from service.runtime import check_tune
from service.schemas import EXAMPLE, Public, to_datetime
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
    definition: dict[str, Any] = Field(description="as it was given; of addresses only the host")


class SchedulePage(BaseModel):
    items: list[SchedulePublic]
    next_cursor: str | None


def public_schedule(row: ScheduleRow, last: RunRow | None, now_s: float) -> SchedulePublic:
    definition = row.definition
    return SchedulePublic.model_validate(
        {
            **{name: getattr(row, name) for name in ("id", "name", "owner", "state", "reason")},
            "cron": definition.get("cron", ""),
            "zone": definition.get("zone", ""),
            "next_at": to_datetime(_next(row, now_s)),
            "last_run": public_run(last) if last else None,
            "created_at": to_datetime(row.created_at),
            "updated_at": to_datetime(row.updated_at),
            "definition": _masked(definition),
        }
    )


def _next(row: ScheduleRow, now_s: float) -> float | None:
    """A schedule kept by an older release may be one that this one cannot read."""
    if row.state != ACTIVE:
        return None
    try:
        spec = parse(ScheduleSpec, row.definition)
        return parse_cron(spec.cron, spec.zone).next_after(now_s)
    except InputError:
        return None


def _masked(definition: Definition) -> Definition:
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
def add(given: ScheduleCreate, app: AppDep, caller: Submitter, response: Response) -> SchedulePublic:
    """`traces` and `metrics` are paths of the server and need the scope admin; `uploads` need none."""
    check_schedule(given, may_tune=app.settings.launch_templates is not None)
    _check_trials(given, app)
    _check_sources(given, caller)
    _check_recipients(given, app)
    definition = given.model_dump(mode="json", by_alias=True)
    with app.database.begin() as conn:
        row = create_schedule(conn, caller.tenant, caller.name, given.name, definition, database_clock(conn))
        _record(conn, caller, "schedule.add", row)
        response.headers["Location"] = f"{PATH}/{row.id}"
        return _public(conn, row)


@router.get("", summary="List schedules, newest first")
def list_all(app: AppDep, caller: Reader, cursor: Cursor = None, limit: Limit = 100) -> SchedulePage:
    with app.database.read() as conn:
        rows, next_cursor = list_schedules(conn, caller.tenant, cursor, limit)
        runs, now_s = last_runs(conn, [row.id for row in rows]), database_clock(conn)
    items = [public_schedule(row, runs.get(row.id), now_s) for row in rows]
    return SchedulePage(items=items, next_cursor=next_cursor)


@router.get("/{id}", summary="One schedule, by id or name")
def get_one(id: Id, app: AppDep, caller: Reader) -> SchedulePublic:
    with app.database.read() as conn:
        return _public(conn, get_schedule(conn, caller.tenant, id))


@router.delete("/{id}", status_code=204, summary="Remove a schedule and its runs")
def remove(id: Id, app: AppDep, caller: Submitter) -> None:
    """The history of its workloads stays."""
    with app.database.begin() as conn:
        row, runs = delete_schedule(conn, caller.tenant, id)
        _record(conn, caller, "schedule.remove", row)
    app.night_queue.forget(runs)


@router.post("/{id}/pause", summary="Run no more nights")
def pause_one(id: Id, app: AppDep, caller: Submitter) -> SchedulePublic:
    with app.database.begin() as conn:
        row = pause(conn, caller.tenant, id)
        _record(conn, caller, "schedule.pause", row)
        return _public(conn, row)


@router.post("/{id}/resume", summary="Run nights again, from now on")
def resume_one(id: Id, app: AppDep, caller: Submitter) -> SchedulePublic:
    with app.database.begin() as conn:
        row = resume(conn, caller.tenant, id, database_clock(conn))
        _record(conn, caller, "schedule.resume", row)
        return _public(conn, row)


@router.post("/{id}/run", status_code=202, summary="Run it now, whatever the clock says")
def run_once(id: Id, app: AppDep, caller: Submitter) -> RunPublic:
    with app.database.begin() as conn:
        run = run_now(conn, app.night_queue, caller.tenant, id)
        record(
            conn, caller.tenant, caller.name, "schedule.run", run.schedule_id, get_request_id(), run=run.id
        )
        return public_run(run)


def _public(conn: sa.Connection, row: ScheduleRow) -> SchedulePublic:
    return public_schedule(row, last_runs(conn, [row.id]).get(row.id), database_clock(conn))


def _record(conn: sa.Connection, caller: Caller, action: str, row: ScheduleRow) -> None:
    record(conn, caller.tenant, caller.name, action, row.id, get_request_id(), name=row.name)


def _check_sources(given: ScheduleSpec, caller: Caller) -> None:
    for place, workload in enumerate(given.workloads):
        for name in ("traces", "metrics"):
            pattern = getattr(workload, name)
            if pattern is not None and not caller.may("admin"):
                allowed = "give uploads; a path of the server needs the scope admin"
                raise InputError(f"workloads[{place}].{name}", pattern, allowed)
        described = workload.scenario if isinstance(workload.scenario, dict) else {}
        if described.get("traces") is not None:
            allowed = "must be absent: the run fills it in with the newest profile"
            raise InputError(f"workloads[{place}].scenario.traces", described["traces"], allowed)


def _check_trials(given: ScheduleSpec, app: AppState) -> None:
    """Whether each workload could be measured here, before a night finds out that it cannot."""
    for place, workload in enumerate(given.workloads):
        described = workload.scenario if isinstance(workload.scenario, dict) else {}
        try:
            check_tune(app.settings, parse_request(given.request(described)))
        except InputError as error:
            raise qualify_field(error, f"workloads[{place}]") from None


def _check_recipients(given: ScheduleSpec, app: AppState) -> None:
    settings, recipients = app.settings, given.recipients
    if recipients.webhooks and settings.webhook_secret is None:
        allowed = "this installation sends none: it has no ASAP_WEBHOOK_SECRET to sign with"
        raise InputError("recipients.webhooks", "an address", allowed)
    if recipients.emails and (settings.smtp_host is None or settings.smtp_from is None):
        allowed = "this installation sends no mail: it has no ASAP_SMTP_HOST and ASAP_SMTP_FROM"
        raise InputError("recipients.emails", recipients.emails[0], allowed)
    for name in ("webhooks", "slack"):
        for url in getattr(recipients, name):
            try:
                parse_target(url, settings.webhook_private)
            except InputError as error:
                raise InputError(f"recipients.{name}", "an address", error.allowed) from None
