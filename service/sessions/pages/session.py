"""/sessions/{id}: the report, and the forms to decide, cancel, retry, delete and export."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse
from pydantic import BaseModel

from graph.ask import Answered
from graph.events import Decided, StateChanged, ToolCalled, parse_event
from graph.request import PLAN_ACTIONS, Decision, parse_request
from service.clusters.pages import DENSE, EXPERTS, find_trust
from service.clusters.usecases import runs_known
from service.db.ids import new_id
from service.errors import NotFoundError
from service.http.deps import Id
from service.http.strict import MARKDOWN
from service.render.bars import plan_charts, trial_chart
from service.render.plan_figures import AXES, axes_of
from service.render.report import markdown_report
from service.render.text import seconds
from service.render.view import view_of
from service.sessions.api import RankInPath, answer_in_time, file_response
from service.sessions.model import EventRow, SessionPatch
from service.sessions.pages.pipeline import LEGEND
from service.sessions.pages.plans import find_plan
from service.sessions.pages.trail import trail_of
from service.sessions.pages.view import SessionView, follow_session, open_session, tiles_of
from service.sessions.pages.workbench import Workbench, workbench_of
from service.sessions.usecases import Sessions, export_proposal, get_report
from service.web.errors import PageRoute
from service.web.forms import CheckedForm, FormFields, add_buttons, plan_value, text_of, whole_number
from service.web.rendering import ApproverPage, Page, ReaderPage, SubmitterPage
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS
from tools.model.basis import basis_of
from tools.model.near import nearest_runs
from tools.model.published import published_runs
from tools.recommend.against import choose_run, compare_with_run
from tools.recommend.report import PlanFields
from tools.scenario import RECOMPUTES
from tools.scenario.fields import build

ADDRESS = "/sessions/{id}"
PLAN = "plan."
NEAR_RUNS = 5

router = APIRouter(prefix=ADDRESS, route_class=PageRoute)
add_buttons(
    router,
    "",
    {
        "cancel": (lambda app, caller, id: app.get(Sessions).cancel(caller, id), ADDRESS),
        "retry": (lambda app, caller, id: app.get(Sessions).retry(caller, id), ADDRESS),
        "delete": (lambda app, caller, id: app.get(Sessions).delete(caller, id), "/"),
    },
)


@router.get("")
def show(id: Id, page: ReaderPage) -> Response:
    return _show(id, page, None)


@router.post("/ask")
async def ask_question(id: Id, form: CheckedForm, page: SubmitterPage) -> Response:
    """The page again, with the answer below its question."""
    answered = await answer_in_time(page.app, page.caller, id, form.get("question", ""))
    return await page.app.in_turn(page.caller.tenant, lambda: _show(id, page, answered))


def _show(id: str, page: Page, answered: Answered | None) -> Response:
    session, events = follow_session(page, id)
    view = session.view
    return page(
        "session",
        session=session,
        bench=_bench(page, session),
        legend=LEGEND,
        decision_id=new_id(),
        tab="",
        trail=trail_of(events),
        submitted=submitted_plans(events),
        formats=EXPORT_FORMATS,
        recomputes=RECOMPUTES,
        trust=find_trust(EXPERTS if view and view.workload.scenario.model.is_moe else DENSE),
        answered=answered,
        tiles=tiles_of(view) if view else [],
        trial_chart=trial_chart(view) if view else None,
    )


@router.get("/workbench")
def show_workbench(id: Id, page: ReaderPage) -> Response:
    """The workbench alone, as scripts swap it."""
    session, view = open_session(page, id)
    bench = _bench(page, session)
    parts = {"session": session, "row": session.row, "view": view, "report": view.report, "bench": bench}
    return page("session_workbench", 200, decision_id=new_id(), legend=LEGEND, **parts)


def _bench(page: Page, session: SessionView) -> Workbench | None:
    """What the address chooses of a session's plans; None before it has some."""
    row, view = session.row, session.view
    if view is None:
        return None
    stated = page.request.query_params
    return workbench_of(view, lambda key: find_plan(page.app, row, view, key), stated, session.decided)


@router.get("/figures")
def show_figures(id: Id, page: ReaderPage) -> Response:
    session, view = open_session(page, id, "there is nothing to draw yet")
    plans = [proposal.plan for proposal in view.report.proposals]
    plans += [view.baseline_plan] if view.baseline_plan else []
    used = {axis for plan in plans for axis in axes_of(plan)}
    return page(
        "session_figures",
        session=session,
        tab="figures",
        # Under the ids that the waterfall links to.
        charts=[replace(chart, id=f"f-{chart.id}") for chart in plan_charts(view.plans)],
        plans=[(plan.key, plan.name) for plan in view.plans],
        axes=[(axis, name) for axis, name in AXES.items() if axis in used],
        first_axis=next(iter(axes_of(plans[0]))),
    )


@router.get("/near")
def show_nearest_runs(
    id: Id, page: ReaderPage, against: Annotated[str | None, Query(max_length=200)] = None
) -> Response:
    """The measured runs most like proposal 1; with `against`, why today's plan is slower than one of them."""
    session, view = open_session(page, id)
    today = scenario = view.workload.scenario
    if view.report.proposals:
        scenario = scenario.model_copy(update={"plan": view.report.proposals[0].plan})
    own = runs_known(page.app.database, page.caller.tenant, scenario.cluster.name)
    runs = [*own, *published_runs()]
    near = page.app.run_search(lambda _: nearest_runs(scenario, runs, NEAR_RUNS))
    basis = basis_of(scenario, view.workload.calibration) if scenario.plan else None
    comparison = None
    if against:
        run, profile = choose_run(scenario, runs, against), view.report.profile
        is_traced = today.plan and profile and (profile.match is None or profile.match.agrees)
        measured_s = profile.step_time_s if is_traced and profile else None
        comparison = compare_with_run(today if today.plan else scenario, run, measured_s)
    return page("session_near", session=session, tab="", near=near, basis=basis, comparison=comparison)


@router.post("/name")
def rename(id: Id, form: CheckedForm, page: SubmitterPage) -> Response:
    page.app.get(Sessions).update(page.caller, id, build(SessionPatch, {"name": form.get("name")}))
    return RedirectResponse(f"/sessions/{id}", 303)


@router.post("/decision")
def decide(id: Id, form: CheckedForm, page: ApproverPage) -> Response:
    rank, changed = whole_number("proposal", form.get("proposal", "")), None
    if form.get("action") == "edit":
        _, view = open_session(page, id, "it has no proposals yet")
        plan = view.find_plan(str(rank))
        if plan is None:
            raise NotFoundError("proposal", str(rank))
        changed = changed_fields(form, plan.model_dump())
    stated = {"action": form.get("action"), "proposal": rank, "plan": changed}
    words = {name: text_of(form, name) for name in ("id", "comment")}
    page.app.get(Sessions).decide(page.caller, id, build(Decision, {**stated, **words}))
    return RedirectResponse(f"/sessions/{id}", 303)


def changed_fields(form: FormFields, plan: PlanFields) -> PlanFields:
    """The fields that were edited in the form, each with the type that it has in the plan."""
    texts = {name.removeprefix(PLAN): text for name, text in form.items() if name.startswith(PLAN) and text}
    typed = {name: plan_value(f"{PLAN}{name}", text, plan.get(name)) for name, text in texts.items()}
    changed: PlanFields = {name: value for name, value in typed.items() if value != plan.get(name)}
    if not changed:
        raise InputError("plan", "the proposal unchanged", "change at least one field")
    return changed


@router.get("/report.md")
def markdown(id: Id, page: ReaderPage) -> Response:
    row = page.app.get(Sessions).get(page.caller, id)
    view = view_of(parse_request(row.request).scenario, get_report(row))
    return Response(markdown_report(view), media_type=MARKDOWN)


@router.get("/proposals/{rank}/export")
def export(id: Id, rank: RankInPath, format: str, page: ReaderPage) -> Response:
    return file_response(export_proposal(page.app.get(Sessions).get(page.caller, id), rank, format))


class PlanScore(BaseModel):
    """What the scoring tool returned; events shorten long results, so fields may be missing."""

    summary: str = "a plan"
    accepted: bool = False
    why: str | None = None
    step_time_s: float | None = None
    step_time_ratio: float | None = None

    @property
    def result(self) -> str:
        if not self.accepted or self.step_time_s is None or self.step_time_ratio is None:
            return self.why or "not scored"
        return f"{seconds(self.step_time_s)} per step, {self.step_time_ratio - 1:+.1%} against proposal 1"


def submitted_plans(events: Sequence[EventRow]) -> list[tuple[str, PlanScore]]:
    """Who submitted a plan, and its score, in order: a plan is scored after the decision that submitted it,
    before the session waits again."""
    submitted, by = [], ""
    for row in events:
        match parse_event(row.kind, row.content):
            case Decided(action=action, by=person):
                by = (person or "unknown") if action in PLAN_ACTIONS else ""
            case StateChanged():
                by = ""
            case ToolCalled(tool="score_plan", result=result) if by:
                submitted.append((by, PlanScore.model_validate(result if isinstance(result, dict) else {})))
    return submitted
