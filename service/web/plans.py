"""/sessions/{id}/plans: every plan that the search timed, from the store, and one in detail with why it is
not proposed. /sessions/{id}/fit: if no plan fits, the memory of the smallest and buttons for what would
make one fit.
"""

import gzip
import json
from dataclasses import dataclass
from functools import lru_cache

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from graph.request import parse_request
from service.api.deps import AppDep, Id, Reader, Submitter, run_bounded_search
from service.api.sessions import file_response
from service.api.state import AppState
from service.auth import Caller
from service.db.models import SessionRow
from service.db.sessions import find_search
from service.errors import ConflictError, NotFoundError
from service.render.bars import BarChart, memory_chart, plan_charts
from service.render.view import Planned, View, get_view, planned_of
from service.sessions import Submission
from service.web.forms import CheckedForm, text_of
from service.web.rendering import PageRoute, page
from service.web.session_view import SessionPage
from tools.errors import InputError
from tools.frameworks import EXPORT_FORMATS, export_plan
from tools.recommend.optimize import workload_of
from tools.recommend.report import Change, RejectedPlan, changes
from tools.recommend.why_not import Remedy, explain_plan, remedies, smallest_plan
from tools.scenario import Plan
from tools.search.ranked import Ranked, unpack
from tools.search.space import count, get_plan

PREFIX = "p"
"""Before the row of a plan where an address names it beside `today` and the ranks of proposals."""


def get_explored(app: AppState, row: SessionRow) -> Ranked:
    """The plans that the session's search timed; never searched again."""
    return unpack(_get_packed(app, row))


def find_plan(app: AppState, row: SessionRow, view: View, key: str) -> Plan | None:
    """`today`, the rank of a proposal, or `p` and the row of a plan that the search timed."""
    number = key.removeprefix(PREFIX)
    if key == number or not number.isdecimal():
        return view.find_plan(key)
    plans = get_explored(app, row).plans
    return get_plan(plans, int(number)) if plans and int(number) < count(plans) else None


@dataclass(frozen=True)
class ExploredPlan:
    """A timed plan beside the recommended one."""

    row: int
    planned: Planned
    verdict: RejectedPlan
    best: Planned
    today: Planned | None

    @property
    def key(self) -> str:
        return f"{PREFIX}{self.row}"

    @property
    def is_proposed(self) -> bool:
        return self.planned.plan == self.best.plan

    @property
    def changes(self) -> list[Change]:
        before = self.today or self.best
        return changes(before.plan, self.planned.plan)

    @property
    def charts(self) -> list[BarChart]:
        return plan_charts([*([self.today] if self.today else []), self.best, self.planned])


router = APIRouter(prefix="/sessions/{id}/plans", route_class=PageRoute)


@router.get("")
def show(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    row, view = _session(app, caller, id)
    explored = get_explored(app, row)
    timed = len(explored.step_time_s)
    return page(
        request,
        "session_plans",
        caller,
        session=SessionPage(row, view),
        tab="plans",
        timed=timed,
        fastest=_explored_plan(app, row, view, 0) if timed else None,
    )


@router.get("/data")
def get_data(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    """As they are kept: `tools/search/ranked.py` describes the format."""
    packed = _get_packed(app, app.sessions.get(caller, id, report=False))
    media_type = "application/octet-stream"
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(gzip.decompress(packed), media_type=media_type)
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(packed, media_type=media_type, headers=headers)


@router.get("/{number}")
def show_plan(id: Id, number: int, request: Request, app: AppDep, caller: Reader) -> Response:
    row, view = _session(app, caller, id)
    explored = _explored_plan(app, row, view, number)
    session = SessionPage(row, view)
    return page(
        request,
        "session_plan",
        caller,
        session=session,
        tab="plans",
        explored=explored,
        formats=EXPORT_FORMATS,
    )


@router.get("/{number}/export")
def export(id: Id, number: int, format: str, app: AppDep, caller: Reader) -> Response:
    """The configuration as a file."""
    row, view = _session(app, caller, id)
    try:
        return file_response(export_plan(view.workload.with_plan(_plan(app, row, view, number)), format))
    except InputError as error:
        raise InputError(error.field.removeprefix("--"), error.given, error.allowed) from None


def _session(app: AppState, caller: Caller, id: str) -> tuple[SessionRow, View]:
    row = app.sessions.get(caller, id)
    return row, get_view(row, "it has no plans yet")


def _get_packed(app: AppState, row: SessionRow) -> bytes:
    with app.database.read() as conn:
        packed = find_search(conn, row.tenant, row.id)
    if packed is None:
        raise NotFoundError("searched plans of session", row.id)
    return packed


def _plan(app: AppState, row: SessionRow, view: View, number: int) -> Plan:
    plan = find_plan(app, row, view, f"{PREFIX}{number}")
    if plan is None:
        raise NotFoundError("plan", str(number))
    return plan


def _explored_plan(app: AppState, row: SessionRow, view: View, number: int) -> ExploredPlan:
    plan, best = _plan(app, row, view, number), view.proposals[0]
    planned = planned_of(f"plan {number}", view.workload, plan)
    today = next((other for other in view.plans if not other.proposal), None)
    return ExploredPlan(number, planned, explain_plan(view.workload, plan, best.plan), best, today)


INFEASIBLE = "infeasible"


@dataclass(frozen=True)
class Fit:
    """The smallest legal plan, and changes with which a plan fits; no plan if none is legal."""

    smallest: Planned | None
    remedies: list[Remedy]

    @property
    def chart(self) -> BarChart | None:
        return memory_chart([self.smallest]) if self.smallest else None

    @property
    def lacking_gib(self) -> float:
        return self.smallest.prediction.peak_memory_gib - self.smallest.limit_gib if self.smallest else 0.0


fit_router = APIRouter(prefix="/sessions/{id}/fit", route_class=PageRoute)


@fit_router.get("")
def show_fit(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    row = _infeasible(app.sessions.get(caller, id))
    session = SessionPage(row, None)
    return page(request, "session_fit", caller, session=session, tab="fit", fit=_fit_of(app, row))


@fit_router.post("")
def submit_remedy(id: Id, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
    """A new session with one of the changes."""
    row, wanted = _infeasible(app.sessions.get(caller, id)), text_of(form, "remedy") or ""
    remedy = next((remedy for remedy in _fit_of(app, row).remedies if remedy.name == wanted), None)
    if remedy is None:
        raise NotFoundError("remedy", wanted)
    changed = Submission(remedy.apply(row.request or {}), row.labels, name=row.name)
    return RedirectResponse(f"/sessions/{app.sessions.submit(caller, changed).id}", 303)


def _infeasible(row: SessionRow) -> SessionRow:
    if not row.error or row.error["kind"] != INFEASIBLE:
        raise ConflictError(
            f"session {row.id} is {row.state}; plans fit it, or it did not search", field="state"
        )
    return row


def _fit_of(app: AppState, row: SessionRow) -> Fit:
    text = json.dumps(row.request or {}, sort_keys=True)
    return run_bounded_search(app, lambda _: _find_fit(text))


@lru_cache(maxsize=32)
def _find_fit(request: str) -> Fit:
    """Of a request as JSON: searched once, for the page and for its buttons."""
    scenario = parse_request(json.loads(request)).scenario
    workload = workload_of(scenario.model_copy(update={"plan": None, "traces": None}))
    smallest = smallest_plan(workload)
    if smallest is None:
        return Fit(None, [])
    planned = Planned(
        "smallest", smallest.plan, smallest.prediction, workload.limit_gib, workload.capacity_gib
    )
    return Fit(planned, remedies(workload, smallest.plan))
