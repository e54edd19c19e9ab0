"""/v1/sessions/{id}/report and /proposals: what a session found, in the form that is asked for."""

from dataclasses import asdict
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from graph.report import Report
from graph.request import MAX_PROPOSALS
from service.api.deps import AppDep, Id, Reader, StrictRoute, preferred
from service.api.sessions import PATH
from service.schemas import Public
from service.sessions import export_proposal, find_proposals, missing_result
from tools.frameworks import EXPORT_FORMATS, Export
from tools.recommend.report import Proposal

JSON, MARKDOWN, HTML, PLAIN = "application/json", "text/markdown", "text/html", "text/plain"
Accept = Annotated[str, Header(description="application/json, text/markdown or text/html")]
ExportAccept = Annotated[str, Header(description="application/json or text/plain")]
Rank = Annotated[int, Path(ge=1, le=MAX_PROPOSALS)]
Format = Annotated[
    str,
    Query(
        description=f"one of {', '.join(EXPORT_FORMATS)}", json_schema_extra={"enum": list(EXPORT_FORMATS)}
    ),
]
_TEXT = {"schema": {"type": "string"}}


class ProposalList(BaseModel):
    items: list[Proposal]


class ExportPublic(Public):
    """A configuration file of a training framework."""

    format: str = Field(json_schema_extra={"enum": list(EXPORT_FORMATS)})
    file_name: str
    text: str
    notes: list[str] = Field(description="what the file alone does not decide")


router = APIRouter(prefix=PATH + "/{id}", tags=["reports"], route_class=StrictRoute)


@router.get(
    "/report",
    summary="The report of a completed session",
    response_model=Report,
    responses={200: {"content": {MARKDOWN: _TEXT, HTML: _TEXT}}},
)
def get_report(id: Id, app: AppDep, caller: Reader, accept: Accept = JSON) -> Response:
    """JSON, Markdown, or one HTML page without scripts: as Accept asks."""
    form = preferred(accept, (JSON, MARKDOWN, HTML))
    row = app.sessions.get(caller, id)
    if row.report is None:
        raise missing_result(row, "it has a report when it is completed")
    if form == JSON:
        return Response(msgspec.json.encode(row.report), media_type=JSON)
    report = Report.model_validate(row.report)
    if form == MARKDOWN:
        from service.render.report import markdown_report

        return Response(markdown_report(row.request or {}, report), media_type=MARKDOWN)
    from service.render.report import content_security_policy, html_report, stylesheet

    policy = {"Content-Security-Policy": content_security_policy(stylesheet())}
    return Response(html_report(row.request or {}, report), media_type=HTML, headers=policy)


@router.get("/proposals", summary="The proposals, best first")
def list_proposals(id: Id, app: AppDep, caller: Reader) -> ProposalList:
    """Also while the session waits for a decision about them."""
    return ProposalList(items=find_proposals(app.sessions.get(caller, id)))


@router.get(
    "/proposals/{rank}/export",
    summary="A proposal as the configuration of a training framework",
    response_model=ExportPublic,
    responses={200: {"content": {PLAIN: _TEXT}}},
)
def get_export(
    id: Id, rank: Rank, format: Format, app: AppDep, caller: Reader, accept: ExportAccept = JSON
) -> Response:
    """As JSON with notes; as the file alone with Accept: text/plain."""
    form = preferred(accept, (JSON, PLAIN))
    export = export_proposal(app.sessions.get(caller, id), rank, format)
    return JSONResponse(asdict(export)) if form == JSON else file_response(export)


def file_response(export: Export) -> Response:
    disposition = {"Content-Disposition": f'attachment; filename="{export.file_name}"'}
    return Response(export.text, media_type=PLAIN, headers=disposition)
