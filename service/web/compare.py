"""/compare: two plans side by side, of one session or of two."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from service.api.deps import AppDep, Reader
from service.db.models import COMPLETED, SessionRow
from service.db.sessions import SessionFilter, get_session, list_sessions
from service.errors import ConflictError, NotFoundError
from service.render.bars import figures_of
from service.render.view import Planned, View, read_workload
from service.web.rendering import PageRoute, page
from service.web.session_view import NO_REPORT, TODAY, find_baseline, session_view
from service.web.sessions import Line
from tools.cost.predict import Prediction
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import Plan

PLANS = {"1": "first proposal", "today": "today's plan", "2": "second proposal", "3": "third proposal"}
CONTRACT = "training"


@dataclass(frozen=True)
class Side:
    name: str
    row: SessionRow
    workload: Workload
    plan: Plan
    prediction: Prediction
    which: str

    @property
    def title(self) -> str:
        s = self.workload.scenario
        return f"{s.model.name or 'Model'} on {s.cluster.num_devices:,} x {s.cluster.device}"

    @property
    def planned(self) -> Planned:
        return Planned(self.name, short(self.plan), self.prediction.model_dump())


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
        """Tokens a second on each device, the second over the first."""
        return self.b.prediction.tokens_per_s_per_device / self.a.prediction.tokens_per_s_per_device

    @property
    def plan(self) -> list[Difference]:
        return _differences(self.a.plan.model_dump(), self.b.plan.model_dump(), "")

    @property
    def surroundings(self) -> list[Difference]:
        """What differs besides the plan."""
        parts = ("model", "cluster", CONTRACT)
        found = [
            one
            for part in parts
            for one in _differences(_part(self.a, part), _part(self.b, part), f"{part}.")
        ]
        return [one for one in found if one.is_changed]

    @property
    def is_comparable(self) -> bool:
        """Plans are comparable only where the training is the same."""
        return not any(one.field.startswith(f"{CONTRACT}.") for one in self.surroundings)

    @property
    def view(self) -> View:
        limit = max(self.a.workload.limit_gib, self.b.workload.limit_gib)
        capacity = max(self.a.workload.capacity_gib, self.b.workload.capacity_gib)
        return View("", "", [self.a.planned, self.b.planned], limit, capacity, NO_REPORT)


def side_of(name: str, row: SessionRow, which: str) -> Side:
    """`which` is `today` or the rank of a proposal."""
    shown = session_view(row)
    if shown.report is None:
        raise ConflictError(f"session {row.id} is {row.state}; it has no plans to compare yet", field="state")
    workload = read_workload(row.request or {}, shown.report)
    plan = _plan(workload, shown.report, which)
    return Side(name, row, workload, plan, workload.predict([plan])[0], which)


def _plan(workload: Workload, report: Mapping[str, Any], which: str) -> Plan:
    if which == TODAY:
        baseline = find_baseline(workload, report)
        if baseline is None:
            raise NotFoundError("plan of today in the session for", workload.scenario.model.name or "a model")
        return baseline
    found = next((one["plan"] for one in report["proposals"] if str(one["rank"]) == which), None)
    if found is None:
        raise NotFoundError("proposal", which)
    return Plan.model_validate(found)


def _part(side: Side, part: str) -> dict[str, Any]:
    found: dict[str, Any] = getattr(side.workload.scenario, part).model_dump()
    return found


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str) -> list[Difference]:
    return [Difference(prefix + name, _told(a[name]), _told(b[name])) for name in a]


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str("" if value is None else value)


RECENT = 60

router = APIRouter(route_class=PageRoute)

SessionId = Annotated[str | None, Query(max_length=64)]
Chosen = Annotated[list[str], Query(alias="s", max_length=50, description="sessions ticked in the list")]
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
        rows = [get_session(conn, caller.tenant, one) for one in (a, b) if one]
    comparison = None
    if len(rows) == 2:
        comparison = Comparison(side_of("A", rows[0], a_plan), side_of("B", rows[1], b_plan))
    known = {row.id: row for row in (*recent, *rows)}
    return page(
        request,
        "compare",
        caller,
        lines=[Line(row) for row in known.values()],
        plans=PLANS,
        chosen={"a": a, "b": b, "a_plan": a_plan, "b_plan": b_plan},
        comparison=comparison,
        figures=figures_of(comparison.view) if comparison else [],
        too_many=len(s) > 2,
    )
