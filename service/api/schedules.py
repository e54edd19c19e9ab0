"""/v1/schedules with their runs, and /v1/workloads: nightly schedules and what their nights found."""

from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from service.api.deps import (
    HTML,
    JSON,
    MARKDOWN,
    TEXT_SCHEMA,
    AppDep,
    Cursor,
    Id,
    Limit,
    Reader,
    ReportAccept,
    StrictRoute,
    Submitter,
    get_request_id,
    preferred,
)
from service.db.access import record
from service.db.schedules import (
    Definition,
    Delivery,
    RunRow,
    WorkloadRow,
    find_workload,
    forget_workload,
    list_workloads,
)
from service.errors import NotFoundError
from service.nightly.schedule import ScheduleSpec
from service.nightly.schedules import Schedule
from service.schemas import EXAMPLE, Public
from service.strict_json import JsonObject


class RunPublic(Public):
    """One night of a schedule."""

    id: str
    schedule_id: str
    planned_at: datetime = Field(description="with the schedule this is the run's identity")
    trigger: Literal["cron", "caught_up", "manual"]
    state: Literal["queued", "running", "completed", "failed", "skipped"]
    outcome: Literal["quiet", "slower", "regression", "broken"] | None
    reason: str | None = Field(
        description="why it was skipped or failed, or which recipient it did not reach"
    )
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deliveries: list[Delivery] | None


class RunPage(BaseModel):
    items: list[RunPublic]
    next_cursor: str | None


class WorkloadPublic(Public):
    """A workload as the last run left it."""

    name: str
    status: str = Field(description="regressed, slower, suspected, quiet, ..., stale, unwatched or broken")
    reason: str | None
    wasted_device_hours_per_day: float
    updated_at: datetime
    run_id: str | None
    session_id: str | None = Field(description="of the proposal that is open")
    outcome: JsonObject = Field(description="all that was said of it")


class WorkloadList(BaseModel):
    items: list[WorkloadPublic] = Field(description="the most wasteful first")


def public_run(row: RunRow) -> RunPublic:
    return RunPublic.model_validate(row)


def public_workload(row: WorkloadRow) -> WorkloadPublic:
    return WorkloadPublic.model_validate({**vars(row), "outcome": row.outcome.model_dump(mode="json")})


runs_router = APIRouter(tags=["schedules"], route_class=StrictRoute)
RUNS = "/v1/schedules/{id}/runs"
WORKLOADS = "/v1/workloads"
Name = Annotated[str, Path(max_length=200, description="of a workload")]
_FORMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {JSON: {"schema": {"type": "object"}}, MARKDOWN: TEXT_SCHEMA, HTML: TEXT_SCHEMA}}
}


@runs_router.get(RUNS, summary="The runs of a schedule, newest first")
def list_runs(id: Id, app: AppDep, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> RunPage:
    """Those that were skipped too, with the reason."""
    rows, next_cursor = app.schedules.list_runs(caller, id, cursor, limit)
    return RunPage(items=[public_run(row) for row in rows], next_cursor=next_cursor)


@runs_router.get(RUNS + "/{run_id}", summary="One run")
def get_run(id: Id, run_id: Id, app: AppDep, caller: Reader) -> RunPublic:
    return public_run(app.schedules.get_run(caller, id, run_id))


@runs_router.get(
    RUNS + "/{run_id}/report", summary="The report of a run", response_class=Response, responses=_FORMS
)
def get_report(id: Id, run_id: Id, app: AppDep, caller: Reader, accept: ReportAccept = JSON) -> Response:
    """JSON, Markdown, or one HTML page without scripts: as Accept asks."""
    form = preferred(accept, (JSON, MARKDOWN, HTML))
    report = app.schedules.get_report(caller, id, run_id)
    if form == JSON:
        return JSONResponse(report.model_dump(mode="json"))
    if form == MARKDOWN:
        from service.nightly.report import markdown_overview

        return Response(markdown_overview(report), media_type=MARKDOWN)
    from service.nightly.report import html_overview, page_name

    return _page(html_overview(report, lambda name: f"workloads/{page_name(name)}"))


@runs_router.get(
    RUNS + "/{run_id}/workloads/{name}",
    summary="What a run says of one workload",
    response_class=Response,
    responses=_FORMS,
)
def get_workload_report(
    id: Id, run_id: Id, name: Name, app: AppDep, caller: Reader, accept: ReportAccept = JSON
) -> Response:
    """With trend plots, as HTML."""
    form = preferred(accept, (JSON, MARKDOWN, HTML))
    report = app.schedules.get_report(caller, id, run_id)
    result = next((result for result in report.workloads if result.name == name), None)
    if result is None:
        raise NotFoundError("workload", name)
    if form == JSON:
        return JSONResponse(result.model_dump(mode="json"))
    if form == MARKDOWN:
        from service.nightly.report import markdown_workload

        return Response(markdown_workload(result, report.at), media_type=MARKDOWN)
    from service.nightly.report import html_workload

    return _page(html_workload(result, report.at, report.title, "../report"))


@runs_router.get(WORKLOADS, summary="Every workload, the most wasteful first")
def list_fleet(app: AppDep, caller: Reader) -> WorkloadList:
    with app.database.read() as conn:
        rows = list_workloads(conn, caller.tenant)
    return WorkloadList(items=[public_workload(row) for row in rows])


@runs_router.get(WORKLOADS + "/{name}", summary="One workload as the last run left it")
def get_workload(name: Name, app: AppDep, caller: Reader) -> WorkloadPublic:
    with app.database.read() as conn:
        row = find_workload(conn, caller.tenant, name)
    if row is None:
        raise NotFoundError("workload", name)
    return public_workload(row)


@runs_router.delete(WORKLOADS + "/{name}", status_code=204, summary="Forget a workload with its nights")
def forget(name: Name, app: AppDep, caller: Submitter) -> None:
    """A schedule that still has it begins its history anew."""
    with app.database.begin() as conn:
        forget_workload(conn, caller.tenant, name)
        record(conn, caller.tenant, caller.name, "workload.forget", name, get_request_id())


def _page(text: str) -> Response:
    from service.nightly.report import page_policy

    return Response(text, media_type=HTML, headers={"Content-Security-Policy": page_policy()})


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
