"""/v1/schedules with their runs, and /v1/workloads: nightly schedules and what their nights found."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from service.errors import NotFoundError
from service.http.auth import Reader, Submitter
from service.http.deps import Cursor, Id, Limit, Public, usecase
from service.http.strict import HTML, JSON, MARKDOWN, TEXT_SCHEMA, ReportAccept, StrictRoute, preferred
from service.schedules.calendar import ScheduleSpec
from service.schedules.model import RunRow, Schedule, WorkloadRow
from service.schedules.report import (
    html_overview,
    html_workload,
    markdown_overview,
    markdown_workload,
    page_name,
    page_policy,
)
from service.schedules.usecases import Schedules
from service.strict_json import JsonObject
from tools.scenario.parse import EXAMPLE

PATH = "/v1/schedules"
RUNS = f"{PATH}/{{id}}/runs"
WORKLOADS = "/v1/workloads"
WorkloadName = Annotated[str, Path(max_length=200, description="name of a workload")]
SchedulesDep = Annotated[Schedules, Depends(usecase(Schedules))]
_FORMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {JSON: {"schema": {"type": "object"}}, MARKDOWN: TEXT_SCHEMA, HTML: TEXT_SCHEMA}}
}
_EXAMPLE: dict[str, Any] = {
    "name": "pretraining",
    "cron": "30 5 * * *",
    "zone": "Europe/Berlin",
    "workloads": [{"name": "llama-70b", "scenario": EXAMPLE, "uploads": "llama-70b-*"}],
    "recipients": {"emails": ["team@example.com"], "when": "alarm"},
}

router = APIRouter(prefix=PATH, tags=["schedules"], route_class=StrictRoute)
runs_router = APIRouter(tags=["schedules"], route_class=StrictRoute)


class ScheduleCreate(ScheduleSpec):
    """A nightly run: which workloads, when, and whom to tell."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={"examples": [_EXAMPLE]})


class SchedulePage(BaseModel):
    items: list[Schedule]
    next_cursor: str | None


class RunPage(BaseModel):
    items: list[RunRow]
    next_cursor: str | None


class WorkloadPublic(Public):
    """A workload as the last run left it."""

    name: str
    status: str = Field(description="regressed, slower, suspected, quiet, ..., stale, unwatched or broken")
    reason: str | None
    wasted_device_hours_per_day: float
    updated_at: datetime
    run_id: str | None
    session_id: str | None = Field(description="session of the proposal that is open")
    outcome: JsonObject = Field(description="all that was said of it")

    @classmethod
    def of(cls, row: WorkloadRow) -> "WorkloadPublic":
        return cls.model_validate(row.model_dump(mode="json"))


class WorkloadList(BaseModel):
    items: list[WorkloadPublic] = Field(description="the most wasteful first")


@runs_router.get(RUNS, summary="The runs of a schedule, newest first")
def list_runs(
    id: Id, schedules: SchedulesDep, caller: Reader, cursor: Cursor = None, limit: Limit = 50
) -> RunPage:
    """Those that were skipped too, with the reason."""
    rows, next_cursor = schedules.list_runs(caller, id, cursor, limit)
    return RunPage(items=rows, next_cursor=next_cursor)


@runs_router.get(RUNS + "/{run_id}", summary="One run")
def get_run(id: Id, run_id: Id, schedules: SchedulesDep, caller: Reader) -> RunRow:
    return schedules.get_run(caller, id, run_id)


@runs_router.get(
    RUNS + "/{run_id}/report", summary="The report of a run", response_class=Response, responses=_FORMS
)
def get_report(
    id: Id, run_id: Id, schedules: SchedulesDep, caller: Reader, accept: ReportAccept = JSON
) -> Response:
    """JSON, Markdown, or one HTML page without scripts: as Accept asks."""
    form = preferred(accept, (JSON, MARKDOWN, HTML))
    report = schedules.get_report(caller, id, run_id)
    if form == JSON:
        return JSONResponse(report.model_dump(mode="json"))
    if form == MARKDOWN:
        return Response(markdown_overview(report), media_type=MARKDOWN)
    return _page(html_overview(report, lambda name: f"workloads/{page_name(name)}"))


@runs_router.get(
    RUNS + "/{run_id}/workloads/{name}",
    summary="What a run says of one workload",
    response_class=Response,
    responses=_FORMS,
)
def get_workload_report(
    id: Id, run_id: Id, name: WorkloadName, schedules: SchedulesDep, caller: Reader,
    accept: ReportAccept = JSON,
) -> Response:  # fmt: skip
    """With trend plots, as HTML."""
    form = preferred(accept, (JSON, MARKDOWN, HTML))
    report = schedules.get_report(caller, id, run_id)
    result = next((result for result in report.workloads if result.name == name), None)
    if result is None:
        raise NotFoundError("workload", name)
    if form == JSON:
        return JSONResponse(result.model_dump(mode="json"))
    if form == MARKDOWN:
        return Response(markdown_workload(result, report.at), media_type=MARKDOWN)
    return _page(html_workload(result, report.at, report.title, "../report"))


def _page(text: str) -> Response:
    return Response(text, media_type=HTML, headers={"Content-Security-Policy": page_policy()})


@runs_router.get(WORKLOADS, summary="Every workload, the most wasteful first")
def list_fleet(schedules: SchedulesDep, caller: Reader) -> WorkloadList:
    return WorkloadList(items=[WorkloadPublic.of(row) for row in schedules.list_workloads(caller)])


@runs_router.get(WORKLOADS + "/{name}", summary="One workload as the last run left it")
def get_workload(name: WorkloadName, schedules: SchedulesDep, caller: Reader) -> WorkloadPublic:
    return WorkloadPublic.of(schedules.get_workload(caller, name))


@runs_router.delete(WORKLOADS + "/{name}", status_code=204, summary="Forget a workload with its nights")
def forget(name: WorkloadName, schedules: SchedulesDep, caller: Submitter) -> None:
    """A schedule that still has it begins its history anew."""
    schedules.forget_workload(caller, name)


@router.post("", status_code=201, summary="Register workloads to be looked at by the clock")
def add(spec: ScheduleCreate, schedules: SchedulesDep, caller: Submitter, response: Response) -> Schedule:
    """`traces` and `metrics` are paths of the server and need the scope operator; `uploads` need none."""
    schedule = schedules.add(caller, spec)
    response.headers["Location"] = f"{PATH}/{schedule.id}"
    return schedule


@router.get("", summary="List schedules, newest first")
def list_all(
    schedules: SchedulesDep, caller: Reader, cursor: Cursor = None, limit: Limit = 100
) -> SchedulePage:
    items, next_cursor = schedules.list_all(caller, cursor, limit)
    return SchedulePage(items=items, next_cursor=next_cursor)


@router.get("/{id}", summary="One schedule, by id or name")
def get_one(id: Id, schedules: SchedulesDep, caller: Reader) -> Schedule:
    return schedules.get(caller, id)


@router.delete("/{id}", status_code=204, summary="Remove a schedule and its runs")
def remove(id: Id, schedules: SchedulesDep, caller: Submitter) -> None:
    """The history of its workloads stays."""
    schedules.remove(caller, id)


@router.post("/{id}/pause", summary="Run no more nights")
def pause_one(id: Id, schedules: SchedulesDep, caller: Submitter) -> Schedule:
    return schedules.pause(caller, id)


@router.post("/{id}/resume", summary="Run nights again, from now on")
def resume_one(id: Id, schedules: SchedulesDep, caller: Submitter) -> Schedule:
    return schedules.resume(caller, id)


@router.post("/{id}/run", status_code=202, summary="Run it now, whatever the clock says")
def run_once(id: Id, schedules: SchedulesDep, caller: Submitter) -> RunRow:
    return schedules.run(caller, id)
