"""/compare: up to five plans side by side, of one session or of several, with only what differs."""

from collections.abc import Sequence
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
from service.render.view import TODAY, Planned, get_view, planned_of, title_of
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
    values: tuple[str, ...]

    @property
    def is_changed(self) -> bool:
        return len(set(self.values)) > 1


@dataclass(frozen=True)
class Comparison:
    sides: tuple[Side, ...]

    @property
    def ratios(self) -> list[float]:
        """Tokens per second and device, each over the first."""
        rates = [side.planned.prediction.tokens_per_s_per_device for side in self.sides]
        return [rate / rates[0] for rate in rates]

    @property
    def plan(self) -> list[Difference]:
        """Fields of the plans that differ."""
        return _differences([side.planned.plan for side in self.sides], "")

    @property
    def context(self) -> list[Difference]:
        """What differs besides the plan."""
        return [
            difference
            for part in CONTEXT
            for difference in _differences([getattr(side.scenario, part) for side in self.sides], f"{part}.")
        ]

    @property
    def is_comparable(self) -> bool:
        """Plans are comparable only if the training is the same."""
        return not any(difference.field.startswith(f"{CONTRACT}.") for difference in self.context)

    @property
    def charts(self) -> list[BarChart]:
        return plan_charts([side.planned for side in self.sides])


def side_of(app: AppState, name: str, row: SessionRow, which: str) -> Side:
    view = get_view(row, "it has no plans to compare yet")
    workload, plan = view.workload, find_plan(app, row, view, which)
    if plan is None:
        kind = f"plan of today in session {row.id}" if which == TODAY else "proposal"
        raise NotFoundError(kind, which)
    return Side(row, which, workload.scenario, planned_of(name, workload, plan))


def _differences(parts: Sequence[BaseModel], prefix: str) -> list[Difference]:
    rows = [
        Difference(prefix + name, tuple(_text(getattr(part, name)) for part in parts))
        for name in type(parts[0]).model_fields
    ]
    return [row for row in rows if row.is_changed]


def _text(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value.model_dump()) if isinstance(value, BaseModel) else format_value(value)


RECENT = 60
MAX_SIDES = 5
NAMES = "ABCDE"

router = APIRouter(route_class=PageRoute)

SessionId = Annotated[str | None, Query(max_length=64)]
Which = Annotated[str, Query(max_length=10)]
Chosen = Annotated[list[str], Query(max_length=50, description="sessions to compare")]
Plans = Annotated[list[str], Query(max_length=50, description="a plan of each session, in the same order")]


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
    p: Plans = [],  # noqa: B006
) -> Response:
    """`s` and `p` repeat; `a` and `b` name two, as links to a pair do."""
    pairs = [(a, a_plan), (b, b_plan)] + [(id, p[at] if at < len(p) else "1") for at, id in enumerate(s)]
    chosen = [(id, which) for id, which in pairs if id][:MAX_SIDES]
    with app.database.read() as conn:
        recent, _ = list_sessions(conn, caller.tenant, SessionFilter(state=COMPLETED), limit=RECENT)
        rows = [get_session(conn, caller.tenant, id) for id, _ in chosen]
    sides = tuple(
        side_of(app, name, row, which)
        for name, row, (_, which) in zip(NAMES, rows, chosen, strict=False)
        if len(rows) > 1
    )
    known = {row.id: row for row in (*recent, *rows)}
    return page(
        request,
        "compare",
        caller,
        lines=[Line(row) for row in known.values()],
        plans=PLANS | {key: f"searched plan {key[1:]}" for _, key in chosen if key.startswith(PREFIX)},
        slots=[*chosen, *[("", "1")] * max(2 - len(chosen), 1)][:MAX_SIDES],
        names=NAMES,
        comparison=Comparison(sides) if sides else None,
        too_many=len([id for id, _ in pairs if id]) > MAX_SIDES,
    )
