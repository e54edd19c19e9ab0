"""/sessions/{id}: the report, and the forms to decide, cancel, retry, delete and export."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from graph.ask import Answered
from graph.report import Report
from graph.request import PLAN_ACTIONS
from service.api.deps import AppDep, Approver, Id, Reader, Submitter
from service.api.sessions import RankInPath, answer_in_time, file_response
from service.api.state import AppState
from service.auth import Caller
from service.db.models import EventRow, new_id
from service.db.sessions import events_after, get_session
from service.errors import NotFoundError
from service.render.report import markdown_report
from service.render.text import seconds
from service.render.view import find_view, get_view
from service.sessions import export_proposal, missing_result
from service.strict_json import JsonObject
from service.web.accuracy import DENSE, EXPERTS, find_trust
from service.web.forms import CheckedForm, Form, add_buttons, text_of, whole_number
from service.web.rendering import PageRoute, page
from service.web.session_view import SessionPage
from service.web.trail import outcome, trail_of
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS
from tools.recommend.report import PlanFields
from tools.scenario import RECOMPUTES

SCORING = "score_plan"
"""The tool that scores a submitted plan."""


@dataclass(frozen=True)
class SubmittedPlan:
    """A plan that a person submitted, with its score."""

    by: str
    summary: str
    says: str


def submitted_plans(events: Sequence[EventRow]) -> list[SubmittedPlan]:
    """In order: a plan is scored after the decision that submitted it, before the session waits again."""
    submitted, by = [], ""
    for event in events:
        content = event.content
        if event.kind == "decided":
            by = str(content.get("by") or "unknown") if content.get("action") in PLAN_ACTIONS else ""
        elif event.kind == "state":
            by = ""
        elif by and event.kind == "tool" and content.get("tool") == SCORING:
            submitted.append(_submitted_plan(by, content.get("result")))
    return submitted


def _submitted_plan(by: str, result: object) -> SubmittedPlan:
    """Events shorten long results, so fields may be missing."""
    score = result if isinstance(result, dict) else {}
    summary, step_s, ratio = (
        str(score.get("summary") or "a plan"),
        score.get("step_time_s"),
        score.get("step_time_ratio"),
    )
    if not score.get("accepted") or not isinstance(step_s, float) or not isinstance(ratio, float):
        return SubmittedPlan(by, summary, str(score.get("why") or "not scored"))
    return SubmittedPlan(by, summary, f"{seconds(step_s)} per step, {ratio - 1:+.1%} against proposal 1")


HERE = "/sessions/{id}"
PLAN = "plan."

router = APIRouter(prefix=HERE, route_class=PageRoute)
add_buttons(
    router,
    "",
    {
        "cancel": (lambda app, caller, id: app.sessions.cancel(caller, id), HERE),
        "retry": (lambda app, caller, id: app.sessions.retry(caller, id), HERE),
        "delete": (lambda app, caller, id: app.sessions.delete(caller, id), "/"),
    },
)


@router.get("")
def get_page(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    return show(id, request, app, caller)


def show(
    id: str, request: Request, app: AppState, caller: Caller, answered: Answered | None = None
) -> Response:
    with app.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
        events = events_after(conn, id, 0)
    session = SessionPage(row, find_view(row))
    return page(
        request,
        "session",
        caller,
        session=session,
        tab="",
        trail=trail_of(events),
        submitted=submitted_plans(events),
        formats=EXPORT_FORMATS,
        recomputes=RECOMPUTES,
        trust=find_trust(EXPERTS if session.has_experts else DENSE),
        decision_id=new_id(),
        answered=answered,
        outcome=outcome,
    )


@router.get("/figures")
def show_figures(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    row = app.sessions.get(caller, id)
    session = SessionPage(row, get_view(row, "there is nothing to draw yet"))
    return page(request, "session_figures", caller, session=session, tab="figures")


@router.post("/name")
def rename(id: Id, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
    app.sessions.rename(caller, id, text_of(form, "name"))
    return RedirectResponse(f"/sessions/{id}", 303)


@router.post("/decision")
def decide(id: Id, form: CheckedForm, app: AppDep, caller: Approver) -> Response:
    rank = whole_number("proposal", form.get("proposal", ""))
    decision: JsonObject = {
        "action": form.get("action"),
        "proposal": rank,
        "id": text_of(form, "id"),
        "comment": text_of(form, "comment"),
    }
    if decision["action"] == "edit":
        plan = get_view(app.sessions.get(caller, id), "it has no proposals yet").find_plan(str(rank))
        if plan is None:
            raise NotFoundError("proposal", str(rank))
        decision["plan"] = dict(changed_fields(form, plan.model_dump()))
    app.sessions.decide(caller, id, decision)
    return RedirectResponse(f"/sessions/{id}", 303)


@router.post("/ask")
def ask_question(id: Id, form: CheckedForm, request: Request, app: AppDep, caller: Submitter) -> Response:
    """The page again, with the answer below its question."""
    answered = answer_in_time(app, caller, id, text_of(form, "question") or "")
    return show(id, request, app, caller, answered)


@router.get("/report.md")
def markdown(id: Id, app: AppDep, caller: Reader) -> Response:
    row = app.sessions.get(caller, id)
    if row.report is None:
        raise missing_result(row, "it has a report when it is completed")
    report = Report.model_validate(row.report)
    return Response(markdown_report(row.request or {}, report), media_type="text/markdown")


@router.get("/proposals/{rank}/export")
def export(id: Id, rank: RankInPath, format: str, app: AppDep, caller: Reader) -> Response:
    """The configuration as a file."""
    return file_response(export_proposal(app.sessions.get(caller, id), rank, format))


def changed_fields(form: Form, plan: PlanFields) -> PlanFields:
    """The fields that were edited in the form, each with the type that it has in the plan."""
    texts = {name.removeprefix(PLAN): text for name, text in form.items() if name.startswith(PLAN)}
    typed = {name: _parse_field(name, text, plan.get(name)) for name, text in texts.items() if text}
    changed: PlanFields = {name: value for name, value in typed.items() if value != plan.get(name)}
    if not changed:
        raise InputError("plan", "the proposal unchanged", "change at least one field")
    return changed


def _parse_field(name: str, text: str, value: object) -> bool | int | str:
    if isinstance(value, bool):
        return text == "true"
    if isinstance(value, int):
        return whole_number(f"plan.{name}", text)
    return text
