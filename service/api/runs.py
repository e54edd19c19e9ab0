"""/v1/schedules/{id}/runs and /v1/workloads: what the nights found, as JSON, Markdown and HTML."""

from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from service.api.deps import (
    AppDep,
    Cursor,
    Id,
    Limit,
    Reader,
    StrictRoute,
    Submitter,
    get_request_id,
    preferred,
)
from service.db.access import record
from service.db.schedules import Delivery, RunRow, WorkloadRow, find_workload, forget_workload, list_workloads
from service.errors import NotFoundError
from service.schemas import Public
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


router = APIRouter(tags=["schedules"], route_class=StrictRoute)
RUNS = "/v1/schedules/{id}/runs"
WORKLOADS = "/v1/workloads"
JSON, MARKDOWN, HTML = "application/json", "text/markdown", "text/html"
Accept = Annotated[str, Header(description="application/json, text/markdown or text/html")]
Name = Annotated[str, Path(max_length=200, description="of a workload")]
_TEXT = {"schema": {"type": "string"}}
_FORMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {JSON: {"schema": {"type": "object"}}, MARKDOWN: _TEXT, HTML: _TEXT}}
}


@router.get(RUNS, summary="The runs of a schedule, newest first")
def list_runs(id: Id, app: AppDep, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> RunPage:
    """Those that were skipped too, with the reason."""
    rows, next_cursor = app.schedules.list_runs(caller, id, cursor, limit)
    return RunPage(items=[public_run(row) for row in rows], next_cursor=next_cursor)


@router.get(RUNS + "/{run_id}", summary="One run")
def get_run(id: Id, run_id: Id, app: AppDep, caller: Reader) -> RunPublic:
    return public_run(app.schedules.get_run(caller, id, run_id))


@router.get(
    RUNS + "/{run_id}/report", summary="The report of a run", response_class=Response, responses=_FORMS
)
def get_report(id: Id, run_id: Id, app: AppDep, caller: Reader, accept: Accept = JSON) -> Response:
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


@router.get(
    RUNS + "/{run_id}/workloads/{name}",
    summary="What a run says of one workload",
    response_class=Response,
    responses=_FORMS,
)
def get_workload_report(
    id: Id, run_id: Id, name: Name, app: AppDep, caller: Reader, accept: Accept = JSON
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


@router.get(WORKLOADS, summary="Every workload, the most wasteful first")
def list_fleet(app: AppDep, caller: Reader) -> WorkloadList:
    with app.database.read() as conn:
        rows = list_workloads(conn, caller.tenant)
    return WorkloadList(items=[public_workload(row) for row in rows])


@router.get(WORKLOADS + "/{name}", summary="One workload as the last run left it")
def get_workload(name: Name, app: AppDep, caller: Reader) -> WorkloadPublic:
    with app.database.read() as conn:
        row = find_workload(conn, caller.tenant, name)
    if row is None:
        raise NotFoundError("workload", name)
    return public_workload(row)


@router.delete(WORKLOADS + "/{name}", status_code=204, summary="Forget a workload with its nights")
def forget(name: Name, app: AppDep, caller: Submitter) -> None:
    """A schedule that still has it begins its history anew."""
    with app.database.begin() as conn:
        forget_workload(conn, caller.tenant, name)
        record(conn, caller.tenant, caller.name, "workload.forget", name, get_request_id())


def _page(text: str) -> Response:
    from service.nightly.report import content_security_policy

    return Response(text, media_type=HTML, headers={"Content-Security-Policy": content_security_policy()})
