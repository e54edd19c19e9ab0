"""What a session found: the report in three forms, its proposals, and each as a framework's configuration."""

from dataclasses import asdict
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import JSONResponse

from graph.decisions import MOST_PROPOSALS
from service.api.accept import preferred
from service.api.dependencies import Id, PartsOf, Reader
from service.api.parts import Parts
from service.api.schemas.reports import ExportPublic, ProposalList, ReportPublic
from service.api.schemas.sessions import PATH
from service.api.strict_route import StrictRoute
from service.errors import ConflictError, NotFoundError
from service.store.rows import SessionRow
from service.store.sessions import get_session
from service.store.states import WAITING
from tools.cost.predict import predict
from tools.errors import InputError
from tools.export import FORMATS, export_plan
from tools.scenario import parse_scenario

router = APIRouter(prefix=PATH + "/{id}", tags=["reports"], route_class=StrictRoute)

JSON, MARKDOWN, HTML, PLAIN = "application/json", "text/markdown", "text/html", "text/plain"
Accept = Annotated[str, Header(description="application/json, text/markdown or text/html")]
ExportAccept = Annotated[str, Header(description="application/json or text/plain")]
Rank = Annotated[int, Path(ge=1, le=MOST_PROPOSALS)]
Format = Annotated[
    str, Query(description=f"one of {', '.join(FORMATS)}", json_schema_extra={"enum": list(FORMATS)})
]
_TEXT = {"schema": {"type": "string"}}


@router.get(
    "/report",
    summary="The report of a completed session",
    response_model=ReportPublic,
    responses={200: {"content": {MARKDOWN: _TEXT, HTML: _TEXT}}},
)
def get_report(id: Id, parts: PartsOf, caller: Reader, accept: Accept = JSON) -> Response:
    """JSON, Markdown, or one HTML page without scripts: as Accept asks."""
    form = preferred(accept, (JSON, MARKDOWN, HTML))
    row = _row(parts, caller.tenant, id)
    if row.report is None:
        raise _lacking(row, "it has a report when it is completed")
    return _rendered(form, row.request or {}, row.report)


@router.get("/proposals", summary="The proposals, best first")
def list_proposals(id: Id, parts: PartsOf, caller: Reader) -> ProposalList:
    """Also while the session waits for a decision about them."""
    return ProposalList.model_validate({"items": _proposals(_row(parts, caller.tenant, id))})


@router.get(
    "/proposals/{rank}/export",
    summary="A proposal as the configuration of a training framework",
    response_model=ExportPublic,
    responses={200: {"content": {PLAIN: _TEXT}}},
)
def export_proposal(
    id: Id, rank: Rank, format: Format, parts: PartsOf, caller: Reader, accept: ExportAccept = JSON
) -> Response:
    """As JSON with notes; as the file alone with Accept: text/plain."""
    form = preferred(accept, (JSON, PLAIN))
    row = _row(parts, caller.tenant, id)
    plan = next((one["plan"] for one in _proposals(row) if one["rank"] == rank), None)
    if plan is None:
        raise NotFoundError("proposal", str(rank))
    try:
        found = export_plan(parse_scenario(_with_plan(row, plan)), format)
    except InputError as error:
        raise InputError(error.field.removeprefix("--"), error.given, error.allowed) from None
    if form == JSON:
        return JSONResponse(asdict(found))
    name = f'attachment; filename="{found.file_name}"'
    return Response(found.text, media_type=PLAIN, headers={"Content-Disposition": name})


def _row(parts: Parts, tenant: str, id: str) -> SessionRow:
    with parts.database.read() as conn:
        return get_session(conn, tenant, id)


def _rendered(form: str, request: dict[str, Any], report: dict[str, Any]) -> Response:
    if form == JSON:
        return Response(msgspec.json.encode(report), media_type=JSON)
    if form == MARKDOWN:
        from service.report.markdown import markdown_report

        return Response(markdown_report(request, report), media_type=MARKDOWN)
    from service.report.html import content_security_policy, html_report

    policy = {"Content-Security-Policy": content_security_policy()}
    return Response(html_report(request, report), media_type=HTML, headers=policy)


def _lacking(row: SessionRow, why: str) -> ConflictError:
    """A failed session will never have it: its error is the answer."""
    reason = row.error["message"] if row.error else why
    return ConflictError(f"session {row.id} is {row.state}; {reason}", field="state")


def _proposals(row: SessionRow) -> list[dict[str, Any]]:
    if row.report is not None:
        return list(row.report["proposals"])
    if row.state != WAITING or row.waiting_for is None:
        raise _lacking(row, "it has no proposals yet")
    asked = row.waiting_for["proposals"]
    predictions = predict([parse_scenario(_with_plan(row, one["plan"])) for one in asked])
    return [{"prediction": found, **one} for found, one in zip(predictions, asked, strict=True)]


def _with_plan(row: SessionRow, plan: dict[str, Any]) -> dict[str, Any]:
    """What is trained and where, with this plan in place of today's."""
    request = row.request or {}
    return {**{name: request[name] for name in ("model", "cluster", "training")}, "plan": plan}
