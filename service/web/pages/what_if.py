"""/what-if: sliders over cluster and plan, answered by the cost model; the address is the question."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from service.api.dependencies import PartsOf, Reader
from service.api.parts import Parts
from service.errors import ConflictError, NotFoundError
from service.report.figures import figures_of
from service.report.view import read_workload
from service.store.sessions import get_session
from service.web.error_pages import PageRoute
from service.web.example import EXAMPLE
from service.web.rendering import page
from service.web.views.baseline import TODAY, find_baseline
from service.web.views.session import session_view
from service.web.views.what_if import controls_of
from service.web.what_if import ask
from tools.cost.calibration import Calibration
from tools.scenario import Plan, Scenario, parse_scenario

router = APIRouter(route_class=PageRoute)

SessionId = Annotated[str | None, Query(alias="session", max_length=64)]
PlanName = Annotated[str | None, Query(alias="plan", max_length=10)]


@router.get("/what-if")
def show(
    request: Request, parts: PartsOf, caller: Reader, session: SessionId = None, plan: PlanName = None
) -> Response:
    given = dict(request.query_params)
    if session:
        scenario, plans, chosen, learned = _of_session(parts, caller.tenant, session, plan)
    else:
        scenario, plans, chosen, learned = parse_scenario(EXAMPLE), {}, "", None
    answer = ask(scenario, given, learned)
    return page(
        request,
        "what_if",
        caller,
        session=session,
        plans=plans,
        chosen=chosen,
        controls=controls_of(scenario, given),
        answer=answer,
        figures=figures_of(answer.view),
    )


def _of_session(
    parts: Parts, tenant: str, id: str, wanted: str | None
) -> tuple[Scenario, dict[str, str], str, Calibration | None]:
    """The session's scenario with the chosen plan, all plans by name, which it is, and its cost model."""
    with parts.database.read() as conn:
        shown = session_view(get_session(conn, tenant, id))
    if shown.view is None or shown.report is None:
        raise ConflictError(f"session {id} is {shown.row.state}; it has no plans yet", field="state")
    workload = read_workload(shown.row.request or {}, shown.report)
    known: dict[str, Any] = {str(one["rank"]): one["plan"] for one in shown.report["proposals"]}
    baseline = find_baseline(workload, shown.report)
    if baseline:
        known = {TODAY: baseline.model_dump(), **known}
    chosen = wanted or next(iter(known))
    if chosen not in known:
        raise NotFoundError("plan", chosen)
    first = "today's plan" if workload.scenario.plan else "the default plan"
    names = {name: first if name == TODAY else f"proposal {name}" for name in known}
    scenario = workload.with_plan(Plan.model_validate(known[chosen]))
    return scenario, names, chosen, workload.calibration
