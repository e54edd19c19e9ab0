"""/v1/sessions: submit, list, read, delete, cancel, retry, decide; reports, proposals and exports."""

import hashlib
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa
from fastapi import APIRouter, Header, Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from graph.request import ACTIONS, MOST_COMMENT, MOST_PROPOSALS, parse_decision
from service.api.deps import (
    AppDep,
    Approver,
    Cursor,
    Id,
    IdempotencyKey,
    Limit,
    Reader,
    StrictRoute,
    Submitter,
    get_request_id,
    preferred,
)
from service.api.state import AppState
from service.auth import Caller
from service.db.access import record
from service.db.lifecycle import decide, request_cancel, retry
from service.db.models import WAITING, SessionRow, new_id
from service.db.sessions import SessionFilter, create_session, delete_session, get_session, list_sessions
from service.errors import ConflictError, NotFoundError
from service.schemas import Public
from service.sessions import (
    PATH,
    SessionCreate,
    SessionDetail,
    SessionPage,
    SessionPublic,
    State,
    check_upload,
    detailed_session,
    new_session,
    public_session,
)
from tools.cost.predict import predict
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS, export_plan
from tools.scenario import Plan, parse_scenario

Action = Annotated[Any, WithJsonSchema({"type": "string", "enum": list(ACTIONS)})]
_FIELDS = {**Plan.model_json_schema(), "required": []}
PlanFields = Annotated[Any, WithJsonSchema({"anyOf": [_FIELDS, {"type": "null"}]})]
Rank = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST_PROPOSALS})]
Comment = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "string", "maxLength": MOST_COMMENT}, {"type": "null"}]})
]


class ProposalPublic(BaseModel):
    """A plan with its prediction, the reasons for it and the risks."""

    model_config = ConfigDict(extra="allow")

    rank: int
    plan: dict[str, Any]
    prediction: dict[str, Any]
    speedup: float | None = Field(None, description="against today's plan; null for a cold start")
    speedup_low: float | None = None
    speedup_high: float | None = None
    changes: list[dict[str, Any]] = []
    rationale: str = ""
    evidence: list[dict[str, Any]] = []
    risks: list[str] = []
    measured: dict[str, Any] | None = None


class ProposalList(BaseModel):
    items: list[ProposalPublic]


class ReportPublic(BaseModel):
    """What `asap optimize --json` prints."""

    model_config = ConfigDict(extra="allow")

    diagnosis: dict[str, Any]
    baseline: dict[str, Any] | None
    proposals: list[ProposalPublic]
    rejected: list[dict[str, Any]]
    searched: dict[str, Any]
    reasoner: str


class ExportPublic(Public):
    """A configuration file of a training framework."""

    format: Literal["torchtitan", "megatron", "nemo", "deepspeed", "maxtext", "accelerate"]
    file_name: str
    text: str
    notes: list[str] = Field(description="what the file alone does not decide")


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
    id: Comment = Field(None, description="of your own, at most 32 characters; sent again it changes nothing")
    proposal: Rank = Field(1, description="its rank")
    plan: PlanFields = Field(
        None, description="with edit and submit: the fields that differ from the proposal"
    )
    comment: Comment = None

    def body(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


router = APIRouter(prefix=PATH, tags=["sessions"], route_class=StrictRoute)

Labels = Annotated[
    list[str],
    Query(alias="label", max_length=8, description="`name` or `name=value`; of several all must hold"),
]
Word = Annotated[str | None, Query(max_length=200)]
Text = Annotated[str | None, Query(max_length=200, description="words that occur in it, in any order")]


@router.post("", status_code=202, summary="Submit a session")
def submit(
    given: SessionCreate, app: AppDep, caller: Submitter, response: Response, key: IdempotencyKey = None
) -> SessionPublic:
    """Answers when it is queued for good: from then on it survives any restart."""
    new = new_session(app, caller, given, key)
    with app.database.begin() as conn:
        check_upload(conn, caller.tenant, new.request)
        row, created = create_session(conn, new)
        if created:
            app.queue.enqueue(conn, row)
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
    """Sessions that arrive while somebody turns the pages shift nothing."""
    filters = SessionFilter(state=state, device=device, model=model, labels=parse_labels(label), text=text)
    with app.database.read() as conn:
        rows, following = list_sessions(conn, caller.tenant, filters, cursor, limit)
    return SessionPage(items=[public_session(row) for row in rows], next_cursor=following)


@router.get("/{id}", summary="One session, with its request")
def get_one(id: Id, app: AppDep, caller: Reader) -> SessionDetail:
    with app.database.read() as conn:
        return detailed_session(get_session(conn, caller.tenant, id, report=False))


@router.delete("/{id}", status_code=204, summary="Delete a session that has ended")
def delete(id: Id, app: AppDep, caller: Submitter) -> None:
    """With its events, decisions and report. One that is still to run must be cancelled first."""
    with app.database.begin() as conn:
        delete_session(conn, caller.tenant, id)
        record(conn, caller.tenant, caller.name, "session.delete", id, get_request_id())


def parse_labels(given: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not name or len(one) > 300:
            raise InputError("label", one, "allowed: name or name=value")
        found[name] = value if equals else None
    return found


actions_router = APIRouter(prefix=PATH + "/{id}", tags=["sessions"], route_class=StrictRoute)


@actions_router.post("/cancel", status_code=202, summary="Stop a session")
def cancel(id: Id, app: AppDep, caller: Submitter) -> SessionPublic:
    """At once where nobody runs it, else at its next event. Cancelling again changes nothing."""
    return _act(app, caller, "session.cancel", id, lambda conn: request_cancel(conn, caller.tenant, id))


@actions_router.post("/retry", status_code=202, summary="Run a failed or cancelled session again")
def run_again(id: Id, app: AppDep, caller: Submitter) -> SessionPublic:
    """From the start, as a new attempt of the same session."""
    return _act(app, caller, "session.retry", id, lambda conn: retry(conn, caller.tenant, id))


@actions_router.post("/decision", status_code=202, summary="Decide on the proposals")
def make_decision(
    id: Id, given: DecisionCreate, app: AppDep, caller: Approver, key: IdempotencyKey = None
) -> SessionPublic:
    """While the session waits for an approval, or after it is completed. A plan that is edited or submitted
    is scored beside the others. The same `id` (or Idempotency-Key) again changes nothing."""
    decision = _decision(id, given, caller, key)
    return _act(
        app,
        caller,
        "session.decide",
        id,
        lambda conn: decide(conn, caller.tenant, id, decision, caller.name),
        decision=decision,
    )


def _act(
    app: AppState,
    caller: Caller,
    action: str,
    id: str,
    move: Callable[[sa.Connection], SessionRow],
    **details: Any,  # noqa: ANN401 - any JSON
) -> SessionPublic:
    """A move that brought a new leg queues it; one that changed nothing leaves no trace."""
    with app.database.begin() as conn:
        before = get_session(conn, caller.tenant, id)
        after = move(conn)
        if after.leg != before.leg:
            app.queue.enqueue(conn, after)
        if (after.leg, after.state, after.cancel_requested) != (
            before.leg,
            before.state,
            before.cancel_requested,
        ):
            record(conn, caller.tenant, caller.name, action, id, get_request_id(), **details)
    return public_session(after)


def _decision(session_id: str, given: DecisionCreate, caller: Caller, key: str | None) -> dict[str, Any]:
    body = given.body()
    if "by" in body:
        raise InputError("by", body["by"], "not taken: the key tells who decides")
    decision = parse_decision({**body, "by": caller.name[:200]})
    own = decision["id"] or key
    # The caller's own word is hashed with the session's id: two tenants may use the same one.
    digest = hashlib.sha256(f"{session_id}/{own}".encode()).hexdigest()[:32]
    return {**decision, "id": digest if own else new_id()}


reports_router = APIRouter(prefix=PATH + "/{id}", tags=["reports"], route_class=StrictRoute)

JSON, MARKDOWN, HTML, PLAIN = "application/json", "text/markdown", "text/html", "text/plain"
Accept = Annotated[str, Header(description="application/json, text/markdown or text/html")]
ExportAccept = Annotated[str, Header(description="application/json or text/plain")]
RankPath = Annotated[int, Path(ge=1, le=MOST_PROPOSALS)]
Format = Annotated[
    str,
    Query(
        description=f"one of {', '.join(EXPORT_FORMATS)}", json_schema_extra={"enum": list(EXPORT_FORMATS)}
    ),
]
_TEXT = {"schema": {"type": "string"}}


@reports_router.get(
    "/report",
    summary="The report of a completed session",
    response_model=ReportPublic,
    responses={200: {"content": {MARKDOWN: _TEXT, HTML: _TEXT}}},
)
def get_report(id: Id, app: AppDep, caller: Reader, accept: Accept = JSON) -> Response:
    """JSON, Markdown, or one HTML page without scripts: as Accept asks."""
    form = preferred(accept, (JSON, MARKDOWN, HTML))
    row = _row(app, caller.tenant, id)
    if row.report is None:
        raise _lacking(row, "it has a report when it is completed")
    return _rendered(form, row.request or {}, row.report)


@reports_router.get("/proposals", summary="The proposals, best first")
def list_proposals(id: Id, app: AppDep, caller: Reader) -> ProposalList:
    """Also while the session waits for a decision about them."""
    return ProposalList.model_validate({"items": _proposals(_row(app, caller.tenant, id))})


@reports_router.get(
    "/proposals/{rank}/export",
    summary="A proposal as the configuration of a training framework",
    response_model=ExportPublic,
    responses={200: {"content": {PLAIN: _TEXT}}},
)
def export_proposal(
    id: Id, rank: RankPath, format: Format, app: AppDep, caller: Reader, accept: ExportAccept = JSON
) -> Response:
    """As JSON with notes; as the file alone with Accept: text/plain."""
    form = preferred(accept, (JSON, PLAIN))
    row = _row(app, caller.tenant, id)
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


def _row(app: AppState, tenant: str, id: str) -> SessionRow:
    with app.database.read() as conn:
        return get_session(conn, tenant, id)


def _rendered(form: str, request: dict[str, Any], report: dict[str, Any]) -> Response:
    if form == JSON:
        return Response(msgspec.json.encode(report), media_type=JSON)
    if form == MARKDOWN:
        from service.render.markdown import markdown_report

        return Response(markdown_report(request, report), media_type=MARKDOWN)
    from service.render.html import content_security_policy, html_report

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
    return [{"prediction": found.model_dump(), **one} for found, one in zip(predictions, asked, strict=True)]


def _with_plan(row: SessionRow, plan: dict[str, Any]) -> dict[str, Any]:
    """What is trained and where, with this plan in place of today's."""
    request = row.request or {}
    return {**{name: request[name] for name in ("model", "cluster", "training")}, "plan": plan}
