"""/sessions/{id}/fit: for a session that no plan fits, the memory of the smallest by its parts, and buttons
for what would make one fit.
"""

import json
from dataclasses import dataclass
from functools import lru_cache

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from graph.request import parse_request
from service.api.deps import AppDep, Id, Reader, Submitter, run_bounded_search
from service.api.state import AppState
from service.db.models import SessionRow
from service.errors import ConflictError, NotFoundError
from service.render.bars import BarChart, memory_chart
from service.render.view import Planned
from service.sessions import Submission
from service.web.forms import CheckedForm, text_of
from service.web.rendering import PageRoute, page
from service.web.session_view import SessionPage
from tools.recommend.feasibility import Remedy, remedies, smallest_plan
from tools.recommend.optimize import workload_of

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


router = APIRouter(prefix="/sessions/{id}/fit", route_class=PageRoute)


@router.get("")
def show(id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    row = _infeasible(app.sessions.get(caller, id))
    session = SessionPage(row, None)
    return page(request, "session_fit", caller, session=session, tab="fit", fit=_fit_of(app, row))


@router.post("")
def submit(id: Id, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
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
