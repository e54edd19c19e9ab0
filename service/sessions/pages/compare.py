"""/compare: up to five plans side by side, of one session or of several, with only what differs."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel

from service.errors import NotFoundError
from service.jobs.model import COMPLETED
from service.render.bars import BarChart, plan_charts
from service.render.text import format_value
from service.render.view import TODAY, PlanView, find_view, planned_of
from service.sessions.model import SessionRow
from service.sessions.pages.listing import SessionLine
from service.sessions.pages.plans import PREFIX, find_plan
from service.sessions.store import SessionFilter, get_session, list_sessions
from service.web.errors import PageRoute
from service.web.rendering import ReaderPage
from tools.scenario import Scenario

PLANS = {"1": "first proposal", TODAY: "today's plan", "2": "second proposal", "3": "third proposal"}
RECENT = 60
MAX_SIDES = 5
NAMES = "ABCDE"
MIN_SIDES = 2

router = APIRouter(route_class=PageRoute)


class ComparedPlan(NamedTuple):
    row: SessionRow
    which: str
    """`today`, or the rank of a proposal."""
    title: str
    scenario: Scenario
    planned: PlanView


class Difference(NamedTuple):
    field: str
    values: tuple[str, ...]


class PlanComparison(NamedTuple):
    sides: Sequence[ComparedPlan]
    ratios: list[float]
    """Tokens per second and device, each over the first."""
    plan: list[Difference]
    context: list[Difference]
    """What differs besides the plan."""
    is_comparable: bool
    """Plans are comparable only if the training is the same."""
    charts: list[BarChart]


@router.get("/compare")
def show(
    page: ReaderPage,
    a: Annotated[str | None, Query(max_length=64)] = None,
    b: Annotated[str | None, Query(max_length=64)] = None,
    a_plan: Annotated[str, Query(max_length=10)] = "1",
    b_plan: Annotated[str, Query(max_length=10)] = "1",
    s: Annotated[list[str], Query(max_length=50, description="sessions to compare")] = [],  # noqa: B006 - FastAPI copies it
    p: Annotated[list[str], Query(max_length=50, description="a plan of each, in the same order")] = [],  # noqa: B006
) -> Response:
    """`s` and `p` repeat; `a` and `b` name two, as links to a pair do."""
    pairs = [(a, a_plan), (b, b_plan)] + [(id, p[at] if at < len(p) else "1") for at, id in enumerate(s)]
    stated = [(id, which) for id, which in pairs if id]
    chosen = stated[:MAX_SIDES]
    with page.app.database.read() as conn:
        recent, _ = list_sessions(conn, page.caller.tenant, SessionFilter(state=COMPLETED), limit=RECENT)
        rows = [get_session(conn, page.caller.tenant, id) for id, _ in chosen]
    sides, views = [], [find_view(row) for row in rows]
    planless = [row for row, view in zip(rows, views, strict=True) if view is None]
    for name, row, view, (_, which) in zip(NAMES, rows, views, chosen, strict=False):
        if view is None or len(rows) - len(planless) < MIN_SIDES:
            continue
        plan = find_plan(page.app, row, view, which)
        if plan is None:
            kind = f"plan of today in session {row.id}" if which == TODAY else "proposal"
            raise NotFoundError(kind, which)
        planned = planned_of(name, view.workload, plan)
        sides.append(ComparedPlan(row, which, view.title, view.workload.scenario, planned))
    return page(
        "compare",
        lines=[SessionLine(row) for row in {row.id: row for row in (*recent, *rows)}.values()],
        plans=PLANS | {key: f"searched plan {key[1:]}" for _, key in chosen if key.startswith(PREFIX)},
        slots=[*chosen, *[("", "1")] * max(2 - len(chosen), 1)][:MAX_SIDES],
        names=NAMES,
        comparison=compare(sides) if sides else None,
        too_many=len(stated) > MAX_SIDES,
        planless=[SessionLine(row) for row in planless],
    )


def compare(sides: Sequence[ComparedPlan]) -> PlanComparison:
    scenarios, plans = [side.scenario for side in sides], [side.planned for side in sides]
    rates = [plan.prediction.tokens_per_s_per_device for plan in plans]
    training = _differences([scenario.training for scenario in scenarios], "training.")
    models = _differences([scenario.model for scenario in scenarios], "model.")
    clusters = _differences([scenario.cluster for scenario in scenarios], "cluster.")
    return PlanComparison(
        sides,
        ratios=[rate / rates[0] for rate in rates],
        plan=_differences([plan.plan for plan in plans], ""),
        context=[*models, *clusters, *training],
        is_comparable=not training,
        charts=plan_charts(plans),
    )


def _differences(parts: Sequence[BaseModel], prefix: str) -> list[Difference]:
    def text(value: object) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return f"{value:,}"
        return str(value.model_dump()) if isinstance(value, BaseModel) else format_value(value)

    fields = type(parts[0]).model_fields
    rows = [Difference(prefix + name, tuple(text(getattr(part, name)) for part in parts)) for name in fields]
    return [row for row in rows if len(set(row.values)) > 1]
