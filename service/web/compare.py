"""/compare: two plans side by side, of one session or of two."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from service.api.deps import AppDep, Reader
from service.api.state import AppState
from service.db.models import COMPLETED, SessionRow
from service.db.sessions import SessionFilter, get_session, list_sessions
from service.errors import NotFoundError
from service.render.bars import BarChart, plan_charts
from service.render.text import format_value
from service.render.view import TODAY, Planned, get_view, title_of
from service.web.plans import PREFIX, find_plan
from service.web.rendering import PageRoute, page
from service.web.sessions import Line
from tools.scenario import Scenario

PLANS = {"1": "first proposal", TODAY: "today's plan", "2": "second proposal", "3": "third proposal"}
CONTRACT = "training"
CONTEXT = ("model", "cluster", CONTRACT)


@dataclass(frozen=True)
class Side:
    row: SessionRow
    which: str
    """`today`, or the rank of a proposal."""
    scenario: Scenario
    planned: Planned

    @property
    def title(self) -> str:
        return title_of(self.scenario)


@dataclass(frozen=True)
class Difference:
    field: str
    a: str
    b: str

    @property
    def is_changed(self) -> bool:
        return self.a != self.b


@dataclass(frozen=True)
class Comparison:
    a: Side
    b: Side

    @property
    def ratio(self) -> float:
        """Tokens per second and device, the second over the first."""
        a, b = (side.planned.prediction for side in (self.a, self.b))
        return b.tokens_per_s_per_device / a.tokens_per_s_per_device

    @property
    def plan(self) -> list[Difference]:
        return _differences(self.a.planned.plan, self.b.planned.plan, "")

    @property
    def context(self) -> list[Difference]:
        """What differs besides the plan."""
        a, b = self.a.scenario, self.b.scenario
        differences = [
            difference
            for part in CONTEXT
            for difference in _differences(getattr(a, part), getattr(b, part), f"{part}.")
        ]
        return [difference for difference in differences if difference.is_changed]

    @property
    def is_comparable(self) -> bool:
        """Plans are comparable only if the training is the same."""
        return not any(difference.field.startswith(f"{CONTRACT}.") for difference in self.context)

    @property
    def charts(self) -> list[BarChart]:
        return plan_charts([self.a.planned, self.b.planned])


def side_of(app: AppState, name: str, row: SessionRow, which: str) -> Side:
    view = get_view(row, "it has no plans to compare yet")
    workload, plan = view.workload, find_plan(app, row, view, which)
    if plan is None:
        kind = f"plan of today in session {row.id}" if which == TODAY else "proposal"
        raise NotFoundError(kind, which)
    prediction = workload.predict([plan])[0]
    planned = Planned(name, plan, prediction, workload.limit_gib, workload.capacity_gib)
    return Side(row, which, workload.scenario, planned)


def _differences(a: BaseModel, b: BaseModel, prefix: str) -> list[Difference]:
    fields = type(a).model_fields
    return [Difference(prefix + name, _text(getattr(a, name)), _text(getattr(b, name))) for name in fields]


def _text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value.model_dump()) if isinstance(value, BaseModel) else format_value(value)


RECENT = 60

router = APIRouter(route_class=PageRoute)

SessionId = Annotated[str | None, Query(max_length=64)]
Chosen = Annotated[list[str], Query(alias="s", max_length=50, description="sessions selected in the list")]
Which = Annotated[str, Query(max_length=10)]


@router.get("/compare")
def show(
    request: Request,
    app: AppDep,
    caller: Reader,
    a: SessionId = None,
    b: SessionId = None,
    a_plan: Which = "1",
    b_plan: Which = "1",
    s: Chosen = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    a, b = a or (s[0] if s else None), b or (s[1] if len(s) > 1 else None)
    with app.database.read() as conn:
        recent, _ = list_sessions(conn, caller.tenant, SessionFilter(state=COMPLETED), limit=RECENT)
        rows = [get_session(conn, caller.tenant, id) for id in (a, b) if id]
    comparison = None
    if len(rows) == 2:
        comparison = Comparison(side_of(app, "A", rows[0], a_plan), side_of(app, "B", rows[1], b_plan))
    known = {row.id: row for row in (*recent, *rows)}
    return page(
        request,
        "compare",
        caller,
        lines=[Line(row) for row in known.values()],
        plans=PLANS | {key: f"searched plan {key[1:]}" for key in (a_plan, b_plan) if key.startswith(PREFIX)},
        chosen={"a": a, "b": b, "a_plan": a_plan, "b_plan": b_plan},
        comparison=comparison,
        too_many=len(s) > 2,
    )
