"""What the runs of schedules found: the list, each report in three forms, and the workloads."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Path, Response
from fastapi.responses import JSONResponse

from service.api.accept import preferred
from service.api.dependencies import Cursor, Id, Limit, PartsOf, Reader, Submitter, get_request_id
from service.api.parts import Parts
from service.api.schemas.schedules import (
    PATH,
    RunPage,
    RunPublic,
    WorkloadList,
    WorkloadPublic,
    public_run,
    public_workload,
)
from service.api.strict_route import StrictRoute
from service.errors import ConflictError, NotFoundError
from service.store.audit import record
from service.store.night_runs import RunRow, get_run, list_runs
from service.store.nights import find_workload, forget_workload, list_workloads
from service.store.schedules import get_schedule

router = APIRouter(tags=["schedules"], route_class=StrictRoute)
RUNS = PATH + "/{id}/runs"
WORKLOADS = "/v1/workloads"
JSON, MARKDOWN, HTML = "application/json", "text/markdown", "text/html"
Accept = Annotated[str, Header(description="application/json, text/markdown or text/html")]
Name = Annotated[str, Path(max_length=200, description="of a workload")]
_TEXT = {"schema": {"type": "string"}}
_FORMS: dict[int | str, dict[str, Any]] = {
    200: {"content": {JSON: {"schema": {"type": "object"}}, MARKDOWN: _TEXT, HTML: _TEXT}}
}


@router.get(RUNS, summary="The runs of a schedule, newest first")
def list_all(id: Id, parts: PartsOf, caller: Reader, cursor: Cursor = None, limit: Limit = 50) -> RunPage:
    """Those that were skipped too, with the reason."""
    with parts.database.read() as conn:
        schedule = get_schedule(conn, caller.tenant, id)
        rows, following = list_runs(conn, caller.tenant, schedule.id, cursor, limit)
    return RunPage(items=[public_run(row) for row in rows], next_cursor=following)


@router.get(RUNS + "/{run_id}", summary="One run")
def get_one(id: Id, run_id: Id, parts: PartsOf, caller: Reader) -> RunPublic:
    return public_run(_run(parts, caller.tenant, id, run_id))


@router.get(
    RUNS + "/{run_id}/report", summary="The report of a run", response_class=Response, responses=_FORMS
)
def get_report(id: Id, run_id: Id, parts: PartsOf, caller: Reader, accept: Accept = JSON) -> Response:
    """JSON, Markdown, or one HTML page without scripts: as Accept asks."""
    form = preferred(accept, (JSON, MARKDOWN, HTML))
    report = _report(_run(parts, caller.tenant, id, run_id))
    if form == JSON:
        return JSONResponse(report)
    if form == MARKDOWN:
        from service.nightly.report.markdown import markdown_overview

        return Response(markdown_overview(report), media_type=MARKDOWN)
    from service.nightly.report.html import html_overview, page_name

    return _page(html_overview(report, lambda name: f"workloads/{page_name(name)}"))


@router.get(
    RUNS + "/{run_id}/workloads/{name}",
    summary="What a run says of one workload",
    response_class=Response,
    responses=_FORMS,
)
def get_workload_report(
    id: Id, run_id: Id, name: Name, parts: PartsOf, caller: Reader, accept: Accept = JSON
) -> Response:
    """With trend plots, as HTML."""
    form = preferred(accept, (JSON, MARKDOWN, HTML))
    report = _report(_run(parts, caller.tenant, id, run_id))
    said = next((one for one in report["workloads"] if one["name"] == name), None)
    if said is None:
        raise NotFoundError("workload", name)
    if form == JSON:
        return JSONResponse(said)
    if form == MARKDOWN:
        from service.nightly.report.markdown import markdown_workload

        return Response(markdown_workload(report, said), media_type=MARKDOWN)
    from service.nightly.report.html import html_workload

    return _page(html_workload(report, said, "../report"))


@router.get(WORKLOADS, summary="Every workload, the most wasteful first")
def list_fleet(parts: PartsOf, caller: Reader) -> WorkloadList:
    with parts.database.read() as conn:
        rows = list_workloads(conn, caller.tenant)
    return WorkloadList(items=[public_workload(row) for row in rows])


@router.get(WORKLOADS + "/{name}", summary="One workload as the last run left it")
def get_workload(name: Name, parts: PartsOf, caller: Reader) -> WorkloadPublic:
    with parts.database.read() as conn:
        row = find_workload(conn, caller.tenant, name)
    if row is None:
        raise NotFoundError("workload", name)
    return public_workload(row)


@router.delete(WORKLOADS + "/{name}", status_code=204, summary="Forget a workload with its nights")
def forget(name: Name, parts: PartsOf, caller: Submitter) -> None:
    """A schedule that still has it begins its history anew."""
    with parts.database.begin() as conn:
        forget_workload(conn, caller.tenant, name)
        record(conn, caller.tenant, caller.name, "workload.forget", name, get_request_id())


def _run(parts: Parts, tenant: str, id: str, run_id: str) -> RunRow:
    with parts.database.read() as conn:
        schedule, run = get_schedule(conn, tenant, id), get_run(conn, tenant, run_id)
    if run.schedule_id != schedule.id:
        raise NotFoundError("run", run_id)
    return run


def _report(run: RunRow) -> dict[str, Any]:
    if run.report is None:
        raise ConflictError(f"run {run.id} is {run.state}; it has no report", field="state")
    return run.report


def _page(text: str) -> Response:
    from service.nightly.report.html import content_security_policy

    return Response(text, media_type=HTML, headers={"Content-Security-Policy": content_security_policy()})
