"""/v1/sessions: submit, list, read, change, fork, cancel, retry, decide, ask, delete; reports, proposals."""

from dataclasses import asdict
from typing import Annotated

import msgspec
from fastapi import APIRouter, Body, Depends, Header, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from graph.ask import MAX_QUESTION, Answered
from graph.report import Report
from graph.request import Decision, Fork, parse_request
from service.access.auth import Caller
from service.http.auth import Approver, Reader, Submitter
from service.http.deps import AppDep, Cursor, Id, IdempotencyKey, Limit, Public, usecase
from service.http.limits import Progress
from service.http.state import AppState
from service.http.strict import (
    HTML,
    JSON,
    MARKDOWN,
    REPORTS,
    TEXT_SCHEMA,
    ReportAccept,
    StrictRoute,
    preferred,
)
from service.runtime import LazyKnowledge
from service.sessions.model import PATH, SessionCreate, SessionDetail, SessionPatch, SessionRow, SessionState
from service.sessions.store import SessionFilter
from service.sessions.usecases import Sessions, export_proposal, find_proposals, get_report
from service.strict_json import JsonObject
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS, Export
from tools.recommend.choose import MAX_PROPOSALS
from tools.recommend.report import Proposal

MAX_LABEL_FILTER_CHARACTERS = 300
PLAIN = "text/plain"

SessionsDep = Annotated[Sessions, Depends(usecase(Sessions))]
Labels = Annotated[
    list[str],
    Query(alias="label", max_length=8, description="`name` or `name=value`; of several all must hold"),
]
FilterWord = Annotated[str | None, Query(max_length=200)]
FilterText = Annotated[str | None, Query(max_length=200, description="words that occur in it, in any order")]
ExportAccept = Annotated[str, Header(description="application/json or text/plain")]
RankInPath = Annotated[int, Path(ge=1, le=MAX_PROPOSALS)]
FORMATS: JsonObject = {"enum": [*EXPORT_FORMATS]}
ExportFormat = Annotated[
    str, Query(description=f"one of {', '.join(EXPORT_FORMATS)}", json_schema_extra=FORMATS)
]
DecisionBody = Annotated[
    Decision,
    Body(
        examples=[
            {"action": "approve", "proposal": 1},
            {"action": "submit", "plan": {"tp": 8, "pp": 1}, "comment": "the racks changed"},
        ]
    ),
]
ForkBody = Annotated[
    Fork, Body(examples=[{"step": 7, "constraints": {"tp": [4, 8]}}, {"notes": "tp stays 8"}])
]
router = APIRouter(prefix=PATH, tags=["sessions"], route_class=StrictRoute)
reports_router = APIRouter(prefix=PATH + "/{id}", tags=["reports"], route_class=StrictRoute)


class QuestionCreate(BaseModel):
    """A question about a finished session."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1, max_length=MAX_QUESTION, examples=["why not tp 8?"])


class SessionPage(BaseModel):
    items: list[SessionRow]
    next_cursor: str | None = Field(description="for the page after this one; null on the last")


class ProposalList(BaseModel):
    items: list[Proposal]


class ExportPublic(Public):
    """A configuration file of a training framework."""

    format: str = Field(json_schema_extra=FORMATS)
    file_name: str
    text: str
    judged_by: str = Field(description="the release whose own code takes files of this format")
    notes: list[str] = Field(description="what the file alone does not decide")


@router.post("", status_code=202, summary="Submit a session")
def submit(
    body: SessionCreate,
    sessions: SessionsDep,
    caller: Submitter,
    response: Response,
    key: IdempotencyKey = None,
) -> SessionRow:
    """Answers when it is durably enqueued: from then on it survives any restart."""
    row = sessions.submit(caller, body, key)
    response.headers["Location"] = row.links.self
    return row


@router.get("", summary="List sessions, newest first")
def list_all(
    sessions: SessionsDep,
    caller: Reader,
    state: SessionState | None = None,
    device: FilterWord = None,
    model: FilterWord = None,
    label: Labels = [],  # noqa: B006 - FastAPI copies it
    text: FilterText = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> SessionPage:
    """Sessions that arrive between two pages shift nothing."""
    filters = SessionFilter(state=state, device=device, model=model, labels=parse_labels(label), text=text)
    rows, next_cursor = sessions.list_all(caller, filters, cursor, limit)
    return SessionPage(items=rows, next_cursor=next_cursor)


@router.get("/{id}", summary="One session, with its request")
def get_one(id: Id, sessions: SessionsDep, caller: Reader) -> SessionDetail:
    return SessionDetail(**dict(sessions.get(caller, id, report=False)))


@router.patch("/{id}", summary="Change a session's name, labels or remark")
def update(id: Id, patch: SessionPatch, sessions: SessionsDep, caller: Submitter) -> SessionRow:
    """At any time, whatever its state; what is absent stays."""
    return sessions.update(caller, id, patch)


@router.delete("/{id}", status_code=204, summary="Delete a session that has ended")
def delete(id: Id, sessions: SessionsDep, caller: Submitter) -> None:
    """With its events, decisions and report. One that has not ended must be cancelled first."""
    sessions.delete(caller, id)


@router.post("/{id}/cancel", status_code=202, summary="Stop a session")
def cancel(id: Id, sessions: SessionsDep, caller: Submitter) -> SessionRow:
    """At once if no worker runs it, else at its next event. Idempotent."""
    return sessions.cancel(caller, id)


@router.post("/{id}/retry", status_code=202, summary="Run a failed or cancelled session again")
def run_again(id: Id, sessions: SessionsDep, caller: Submitter) -> SessionRow:
    """From the start, as a new attempt of the same session."""
    return sessions.retry(caller, id)


@router.post("/{id}/decision", status_code=202, summary="Decide on the proposals")
def make_decision(
    id: Id, decision: DecisionBody, sessions: SessionsDep, caller: Approver, key: IdempotencyKey = None
) -> SessionRow:
    """While the session waits for approval, or after it is completed. A plan that is edited or submitted
    is scored beside the others. The same `id` (or Idempotency-Key) again changes nothing."""
    return sessions.decide(caller, id, decision, key)


@router.post("/{id}/fork", status_code=202, summary="Go on from a step of a session with another answer")
def fork(
    id: Id,
    fork: ForkBody,
    sessions: SessionsDep,
    caller: Submitter,
    response: Response,
    key: IdempotencyKey = None,
) -> SessionRow:
    """A new session, which repeats nothing before that step; `forked_from` links to the other one, in any
    state. A decision needs the scope approve."""
    row = sessions.fork(caller, id, fork, key)
    response.headers["Location"] = row.links.self
    return row


@router.post("/{id}/ask", summary="Ask about a completed session")
async def ask_question(id: Id, asked: QuestionCreate, app: AppDep, caller: Submitter) -> Answered:
    """Answered by the language model with its tools, or by rules: why not, what if, days, cost, risks."""
    return await answer_in_time(app, caller, id, asked.question)


async def answer_in_time(app: AppState, caller: Caller, id: str, question: str) -> Answered:
    """A language model has a deadline of its own beside that of a search, and takes no turn as it thinks."""
    settings, has_model = app.settings, app.asks_model(caller.tenant)
    turn = app.turn_of(caller.tenant) if has_model else None

    def ask(progress: Progress) -> Answered:
        knowledge = app.get(LazyKnowledge).get()
        return app.get(Sessions).ask(caller, id, question, knowledge, progress, turn)

    if has_model:
        max_s = settings.request_s + settings.llm_deadline_s
        answered = await app.questions.answer(caller.tenant, max_s, ask)
    else:
        answered = await app.in_turn(caller.tenant, lambda: app.run_search(ask))
    for incident in answered.incidents:
        app.metrics.observe_incident(incident.kind, incident.error, incident.place)
    return answered


def parse_labels(texts: list[str]) -> dict[str, str | None]:
    labels: dict[str, str | None] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or len(text) > MAX_LABEL_FILTER_CHARACTERS:
            raise InputError("label", text, "allowed: name or name=value")
        labels[name] = value if equals else None
    return labels


@reports_router.get(
    "/report",
    summary="The report of a completed session",
    response_model=Report,
    responses={200: {"content": {MARKDOWN: TEXT_SCHEMA, HTML: TEXT_SCHEMA}}},
)
def show_report(id: Id, sessions: SessionsDep, caller: Reader, accept: ReportAccept = JSON) -> Response:
    """JSON, Markdown, or one HTML page without scripts: as Accept asks."""
    from service.render.report import content_security_policy, html_report, markdown_report, stylesheet
    from service.render.view import view_of

    form = preferred(accept, REPORTS)
    row = sessions.get(caller, id)
    if form == JSON and row.report is not None:
        return Response(msgspec.json.encode(row.report), media_type=JSON)
    view = view_of(parse_request(row.request).scenario, get_report(row))
    if form == MARKDOWN:
        return Response(markdown_report(view), media_type=MARKDOWN)
    policy = {"Content-Security-Policy": content_security_policy(stylesheet())}
    return Response(html_report(view), media_type=HTML, headers=policy)


@reports_router.get("/proposals", summary="The proposals, best first")
def list_proposals(id: Id, sessions: SessionsDep, caller: Reader) -> ProposalList:
    """Also while the session waits for a decision about them."""
    return ProposalList(items=find_proposals(sessions.get(caller, id)))


@reports_router.get(
    "/proposals/{rank}/export",
    summary="A proposal as the configuration of a training framework",
    response_model=ExportPublic,
    responses={200: {"content": {PLAIN: TEXT_SCHEMA}}},
)
def get_export(
    id: Id,
    rank: RankInPath,
    format: ExportFormat,
    sessions: SessionsDep,
    caller: Reader,
    accept: ExportAccept = JSON,
) -> Response:
    """As JSON with notes; as the file alone with Accept: text/plain."""
    form = preferred(accept, (JSON, PLAIN))
    export = export_proposal(sessions.get(caller, id), rank, format)
    return JSONResponse(asdict(export)) if form == JSON else file_response(export)


def file_response(export: Export) -> Response:
    disposition = {"Content-Disposition": f'attachment; filename="{export.file_name}"'}
    return Response(export.text, media_type=PLAIN, headers=disposition)
