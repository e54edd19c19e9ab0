"""/v1/sessions: submit, list, read, delete, cancel, retry, decide, ask; the report and the proposals, in the
format that Accept asks for.
"""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from graph.ask import MAX_QUESTION, Answered
from graph.report import Report
from graph.request import ACTIONS, MAX_COMMENT, MAX_PROPOSALS
from service.api.deps import (
    HTML,
    JSON,
    MARKDOWN,
    TEXT_SCHEMA,
    AppDep,
    Approver,
    Cursor,
    Id,
    IdempotencyKey,
    Limit,
    Reader,
    ReportAccept,
    StrictRoute,
    Submitter,
    preferred,
    run_in_turn,
)
from service.api.state import AppState
from service.auth import Caller
from service.db.models import SessionRow
from service.db.sessions import DEFAULT_PRIORITY, SessionFilter, list_sessions
from service.schemas import EXAMPLE, Budget, Public, SearchCreate
from service.sessions import Submission, export_proposal, find_proposals, missing_result
from service.strict_json import JsonObject
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS, Export
from tools.recommend.report import Proposal
from tools.scenario import Plan
from tools.scenario.fields import refuse_unknown

PATH = "/v1/sessions"
State = Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"]
SERVICE_FIELDS = ("name", "labels", "priority", "webhook", "budget")
MAX_LABEL_FILTER_CHARACTERS = 300

Action = Annotated[Any, WithJsonSchema({"type": "string", "enum": list(ACTIONS)})]
_FIELDS = {**Plan.model_json_schema(), "required": []}
PlanFields = Annotated[Any, WithJsonSchema({"anyOf": [_FIELDS, {"type": "null"}]})]
Rank = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_PROPOSALS})]
Comment = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "string", "maxLength": MAX_COMMENT}, {"type": "null"}]})
]


class QuestionCreate(BaseModel):
    """A question about a finished session."""

    model_config = ConfigDict(extra="forbid")

    question: str = Field(min_length=1, max_length=MAX_QUESTION, examples=["why not tp 8?"])


class PolicyCreate(BaseModel):
    """What trials may change if a policy approves them."""

    model_config = ConfigDict(extra="forbid")

    fields: list[str] = Field(max_length=50, description="fields of the plan; what follows from them may too")


class SessionCreate(SearchCreate):
    """The body of `asap optimize`, and how far ASAP may go with it."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {**EXAMPLE, "mode": "advise", "approval": "none", "labels": {"team": "pretraining"}},
            ]
        },
    )

    mode: Literal["advise", "tune"] | None = Field(
        None, description="tune also measures plans on the cluster"
    )
    approval: Literal["none", "person", "policy"] | None = Field(
        None,
        description="person: the session waits for a decision before anything is launched or closed; "
        "policy: trials keep to `policy` and the budget",
    )
    policy: PolicyCreate | None = Field(None, description="with approval policy: what trials may change")
    template: str | None = Field(
        None, max_length=253, description="the registered launch template of its trials; else the usual one"
    )
    name: str | None = Field(None, description="your own name for it; pages show it first")
    labels: dict[str, str] = Field(default_factory=dict, description="at most 32, to find it again by")
    priority: int = Field(DEFAULT_PRIORITY, ge=0, le=9, description="the higher ones run first")
    webhook: str | None = Field(
        None,
        max_length=2000,
        description="notified, with a signature, when the session ends or waits for approval",
    )
    budget: Budget | None = None

    def submission(self, idempotency_key: str | None = None) -> Submission:
        """What the service itself reads is taken out of the request, which is for the agents."""
        body = self.body()
        refuse_unknown(body, SessionCreate.model_fields, "")
        return Submission(
            request={name: value for name, value in body.items() if name not in SERVICE_FIELDS},
            name=self.name,
            labels=self.labels,
            priority=self.priority,
            webhook=self.webhook,
            budget=self.budget.model_dump(exclude_none=True) if self.budget else None,
            idempotency_key=idempotency_key,
        )


class Links(BaseModel):
    self: str
    events: str
    report: str
    proposals: str
    cancel: str
    retry: str
    decision: str


class ErrorPublic(BaseModel):
    """Why a session failed."""

    model_config = ConfigDict(extra="allow")

    kind: str
    message: str
    field: str | None = None


class SessionPublic(Public):
    """One optimization: submitted, run by a worker, ended."""

    id: str
    state: State
    mode: str
    approval: str
    priority: int
    name: str | None
    labels: dict[str, str]
    owner: str = Field(description="the name of the key or token that submitted it")
    attempt: int = Field(description="1, and one more for each retry")
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    model: str | None
    device: str | None
    num_devices: int | None
    bottleneck: str | None = Field(description="of today's plan, when known")
    verdict: str | None = Field(description="the outcome in one sentence")
    speedup: float | None = Field(description="predicted, of the first proposal against today's plan")
    measured_speedup: float | None = Field(description="by a trial, if there was one")
    error: ErrorPublic | None
    webhook: str | None
    budget: JsonObject | None
    links: Links


class SessionDetail(SessionPublic):
    request: JsonObject | None = Field(description="the scenario as it was submitted")


class SessionPage(BaseModel):
    items: list[SessionPublic]
    next_cursor: str | None = Field(description="for the page after this one; null on the last")


class DecisionCreate(BaseModel):
    """approve or reject a proposal, edit fields of one, or submit a plan of one's own."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {"action": "approve", "proposal": 1},
                {"action": "submit", "plan": {"tp": 8, "pp": 1}, "comment": "the racks changed"},
            ]
        },
    )

    action: Action
    id: Comment = Field(
        None, description="your own, at most 32 characters; the same id again changes nothing"
    )
    proposal: Rank = Field(1, description="its rank")
    plan: PlanFields = Field(
        None, description="with edit and submit: the fields that differ from the proposal"
    )
    comment: Comment = None


def public_session(row: SessionRow) -> SessionPublic:
    return SessionPublic.model_validate(_public_fields(row))


def _public_fields(row: SessionRow) -> JsonObject:
    here = f"{PATH}/{row.id}"
    links: JsonObject = {name: here if name == "self" else f"{here}/{name}" for name in Links.model_fields}
    return {**vars(row), "links": links}


router = APIRouter(prefix=PATH, tags=["sessions"], route_class=StrictRoute)

Labels = Annotated[
    list[str],
    Query(alias="label", max_length=8, description="`name` or `name=value`; of several all must hold"),
]
Word = Annotated[str | None, Query(max_length=200)]
Text = Annotated[str | None, Query(max_length=200, description="words that occur in it, in any order")]


@router.post("", status_code=202, summary="Submit a session")
def submit(
    body: SessionCreate, app: AppDep, caller: Submitter, response: Response, key: IdempotencyKey = None
) -> SessionPublic:
    """Answers when it is durably enqueued: from then on it survives any restart."""
    row = app.sessions.submit(caller, body.submission(key))
    response.headers["Location"] = f"{PATH}/{row.id}"
    return public_session(row)


@router.get("", summary="List sessions, newest first")
def list_all(
    app: AppDep,
    caller: Reader,
    state: State | None = None,
    device: Word = None,
    model: Word = None,
    label: Labels = [],  # noqa: B006 - FastAPI copies it
    text: Text = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> SessionPage:
    """Sessions that arrive between two pages shift nothing."""
    filters = SessionFilter(state=state, device=device, model=model, labels=parse_labels(label), text=text)
    with app.database.read() as conn:
        rows, next_cursor = list_sessions(conn, caller.tenant, filters, cursor, limit)
    return SessionPage(items=[public_session(row) for row in rows], next_cursor=next_cursor)


@router.get("/{id}", summary="One session, with its request")
def get_one(id: Id, app: AppDep, caller: Reader) -> SessionDetail:
    row = app.sessions.get(caller, id, report=False)
    return SessionDetail.model_validate({**_public_fields(row), "request": row.request})


@router.delete("/{id}", status_code=204, summary="Delete a session that has ended")
def delete(id: Id, app: AppDep, caller: Submitter) -> None:
    """With its events, decisions and report. One that has not ended must be cancelled first."""
    app.sessions.delete(caller, id)


@router.post("/{id}/cancel", status_code=202, summary="Stop a session")
def cancel(id: Id, app: AppDep, caller: Submitter) -> SessionPublic:
    """At once if no worker runs it, else at its next event. Idempotent."""
    return public_session(app.sessions.cancel(caller, id))


@router.post("/{id}/retry", status_code=202, summary="Run a failed or cancelled session again")
def run_again(id: Id, app: AppDep, caller: Submitter) -> SessionPublic:
    """From the start, as a new attempt of the same session."""
    return public_session(app.sessions.retry(caller, id))


@router.post("/{id}/decision", status_code=202, summary="Decide on the proposals")
def make_decision(
    id: Id, body: DecisionCreate, app: AppDep, caller: Approver, key: IdempotencyKey = None
) -> SessionPublic:
    """While the session waits for approval, or after it is completed. A plan that is edited or submitted
    is scored beside the others. The same `id` (or Idempotency-Key) again changes nothing."""
    return public_session(app.sessions.decide(caller, id, body.model_dump(exclude_unset=True), key))


@router.post("/{id}/ask", summary="Ask about a completed session")
def ask_question(id: Id, asked: QuestionCreate, app: AppDep, caller: Submitter) -> Answered:
    """Answered by the language model with its tools, or by rules: why not a plan, what if another one."""
    return answer_in_time(app, caller, id, asked.question)


def answer_in_time(app: AppState, caller: Caller, id: str, question: str) -> Answered:
    """A language model has a deadline of its own beside that of a search, and takes no turn as it thinks."""
    knowledge, has_model = app.knowledge.get(), app.settings.llm_base_url is not None
    answered = run_in_turn(
        app.questions if has_model else app.searches,
        app.settings.request_s + (app.settings.llm_deadline_s if has_model else 0.0),
        lambda progress: app.sessions.ask(
            caller, id, question, knowledge, progress, app.searches if has_model else None
        ),
    )
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


PLAIN = "text/plain"
ExportAccept = Annotated[str, Header(description="application/json or text/plain")]
RankInPath = Annotated[int, Path(ge=1, le=MAX_PROPOSALS)]
Format = Annotated[
    str,
    Query(
        description=f"one of {', '.join(EXPORT_FORMATS)}", json_schema_extra={"enum": list(EXPORT_FORMATS)}
    ),
]


class ProposalList(BaseModel):
    items: list[Proposal]


class ExportPublic(Public):
    """A configuration file of a training framework."""

    format: str = Field(json_schema_extra={"enum": list(EXPORT_FORMATS)})
    file_name: str
    text: str
    notes: list[str] = Field(description="what the file alone does not decide")


reports_router = APIRouter(prefix=PATH + "/{id}", tags=["reports"], route_class=StrictRoute)


@reports_router.get(
    "/report",
    summary="The report of a completed session",
    response_model=Report,
    responses={200: {"content": {MARKDOWN: TEXT_SCHEMA, HTML: TEXT_SCHEMA}}},
)
def get_report(id: Id, app: AppDep, caller: Reader, accept: ReportAccept = JSON) -> Response:
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


@reports_router.get("/proposals", summary="The proposals, best first")
def list_proposals(id: Id, app: AppDep, caller: Reader) -> ProposalList:
    """Also while the session waits for a decision about them."""
    return ProposalList(items=find_proposals(app.sessions.get(caller, id)))


@reports_router.get(
    "/proposals/{rank}/export",
    summary="A proposal as the configuration of a training framework",
    response_model=ExportPublic,
    responses={200: {"content": {PLAIN: TEXT_SCHEMA}}},
)
def get_export(
    id: Id, rank: RankInPath, format: Format, app: AppDep, caller: Reader, accept: ExportAccept = JSON
) -> Response:
    """As JSON with notes; as the file alone with Accept: text/plain."""
    form = preferred(accept, (JSON, PLAIN))
    export = export_proposal(app.sessions.get(caller, id), rank, format)
    return JSONResponse(asdict(export)) if form == JSON else file_response(export)


def file_response(export: Export) -> Response:
    disposition = {"Content-Disposition": f'attachment; filename="{export.file_name}"'}
    return Response(export.text, media_type=PLAIN, headers=disposition)
