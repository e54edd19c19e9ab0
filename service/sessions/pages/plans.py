"""/sessions/{id}/plans: every plan that the search timed, from the store, and one in detail with why it is
not proposed. /sessions/{id}/fit: if no plan fits, the memory of the smallest and buttons for what would
make one fit.
"""

import json
from dataclasses import dataclass
from functools import lru_cache

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse

from graph.request import parse_request
from service.errors import ConflictError, NotFoundError
from service.http.deps import Id
from service.http.state import AppState
from service.render.bars import BarChart, memory_chart, plan_charts
from service.render.view import PlanView, ReportView, planned_of
from service.sessions.api import file_response
from service.sessions.model import SessionCreate, SessionRow
from service.sessions.pages.view import SessionView, open_session
from service.sessions.store import find_search
from service.sessions.usecases import Sessions
from service.web.errors import PageRoute
from service.web.forms import CheckedForm
from service.web.rendering import Page, ReaderPage, SubmitterPage
from tools.frameworks import EXPORT_FORMATS, export_plan
from tools.recommend.optimize import workload_of
from tools.recommend.report import Change, RejectedPlan, changes
from tools.recommend.why_not import Remedy, explain_plan, remedies, smallest_plan
from tools.scenario import Plan
from tools.scenario.fields import build
from tools.search.ranked import Ranked, unpack

PREFIX = "p"
"""Before the row of a plan where an address names it beside `today` and the ranks of proposals."""

router = APIRouter(prefix="/sessions/{id}/plans", route_class=PageRoute)
fit_router = APIRouter(prefix="/sessions/{id}/fit", route_class=PageRoute)


@dataclass(frozen=True)
class ExploredPlan:
    """A timed plan beside the recommended one."""

    row: int
    planned: PlanView
    verdict: RejectedPlan
    best: PlanView
    today: PlanView | None

    @property
    def key(self) -> str:
        return f"{PREFIX}{self.row}"

    @property
    def is_proposed(self) -> bool:
        return self.planned.plan == self.best.plan

    @property
    def changes(self) -> list[Change]:
        return changes((self.today or self.best).plan, self.planned.plan)

    @property
    def charts(self) -> list[BarChart]:
        return plan_charts([*([self.today] if self.today else []), self.best, self.planned])


@router.get("")
def show(id: Id, page: ReaderPage) -> Response:
    session, view = open_session(page, id)
    timed = len(get_explored(page.app, session.row).step_time_s)
    fastest = _explored_plan(page, session.row, view, 0) if timed else None
    return page("session_plans", session=session, tab="plans", timed=timed, fastest=fastest)


@router.get("/data")
def get_data(id: Id, page: ReaderPage) -> Response:
    """As they are kept: `tools/search/ranked.py` describes the format."""
    return page.packed(_get_packed(page.app, page.app.get(Sessions).get(page.caller, id, report=False)))


@router.get("/{number}")
def show_plan(id: Id, number: int, page: ReaderPage) -> Response:
    session, view = open_session(page, id)
    explored = _explored_plan(page, session.row, view, number)
    return page("session_plan", session=session, tab="plans", explored=explored, formats=EXPORT_FORMATS)


@router.get("/{number}/export")
def export(id: Id, number: int, format: str, page: ReaderPage) -> Response:
    session, view = open_session(page, id)
    plan = _get_plan(page, session.row, view, number)
    return file_response(export_plan(view.workload.with_plan(plan), format))


def find_plan(app: AppState, row: SessionRow, view: ReportView, key: str) -> Plan | None:
    """`today`, the rank of a proposal, or `p` and the row of a plan that the search timed."""
    number = key.removeprefix(PREFIX)
    if key == number or not number.isdecimal():
        return view.find_plan(key)
    plans = get_explored(app, row).plans
    return plans.plan(int(number)) if plans and int(number) < plans.rows else None


def get_explored(app: AppState, row: SessionRow) -> Ranked:
    """The plans that the session's search timed; never searched again."""
    return unpack(_get_packed(app, row))


def _get_packed(app: AppState, row: SessionRow) -> bytes:
    with app.database.read() as conn:
        packed = find_search(conn, row.tenant, row.id)
    if packed is None:
        raise NotFoundError("searched plans of session", row.id)
    return packed


def _get_plan(page: Page, row: SessionRow, view: ReportView, number: int) -> Plan:
    plan = find_plan(page.app, row, view, f"{PREFIX}{number}")
    if plan is None:
        raise NotFoundError("plan", str(number))
    return plan


def _explored_plan(page: Page, row: SessionRow, view: ReportView, number: int) -> ExploredPlan:
    plan, best = _get_plan(page, row, view, number), view.proposals[0]
    planned = planned_of(f"plan {number}", view.workload, plan)
    today = next((other for other in view.plans if not other.proposal), None)
    return ExploredPlan(number, planned, explain_plan(view.workload, plan, best.plan), best, today)


@dataclass(frozen=True)
class Fit:
    """The smallest legal plan, and changes with which a plan fits; no plan if none is legal."""

    smallest: PlanView | None
    remedies: list[Remedy]

    @property
    def chart(self) -> BarChart | None:
        return memory_chart([self.smallest]) if self.smallest else None

    @property
    def lacking_gib(self) -> float:
        return self.smallest.prediction.peak_memory_gib - self.smallest.limit_gib if self.smallest else 0.0


@fit_router.get("")
def show_fit(id: Id, page: ReaderPage) -> Response:
    session, fit = _infeasible(page, id)
    return page("session_fit", session=session, tab="fit", fit=fit)


@fit_router.post("")
def submit_remedy(id: Id, form: CheckedForm, page: SubmitterPage) -> Response:
    """A new session with one of the changes."""
    session, fit = _infeasible(page, id)
    wanted, row = form.get("remedy", ""), session.row
    remedy = next((remedy for remedy in fit.remedies if remedy.name == wanted), None)
    if remedy is None:
        raise NotFoundError("remedy", wanted)
    request = remedy.apply(row.request)
    changed = build(SessionCreate, {**request, "labels": row.labels, "name": row.name})
    return RedirectResponse(f"/sessions/{page.app.get(Sessions).submit(page.caller, changed).id}", 303)


def _infeasible(page: Page, id: str) -> tuple[SessionView, Fit]:
    row = page.app.get(Sessions).get(page.caller, id)
    session = SessionView(row, None)
    if not session.is_infeasible:
        message = f"session {row.id} is {row.state}; plans fit it, or it did not search"
        raise ConflictError(message, path="state")
    request = json.dumps(row.request, sort_keys=True)
    return session, page.app.run_search(lambda _: _find_fit(request))


@lru_cache(maxsize=32)
def _find_fit(request: str) -> Fit:
    """The request is JSON, so that one search serves the page and its buttons."""
    scenario = parse_request(json.loads(request)).scenario
    workload = workload_of(scenario.model_copy(update={"plan": None, "traces": None}))
    smallest = smallest_plan(workload)
    if smallest is None:
        return Fit(None, [])
    limits = workload.limit_gib, workload.capacity_gib
    view = PlanView("smallest", smallest.plan, smallest.prediction, *limits)
    return Fit(view, remedies(workload, smallest.plan))
