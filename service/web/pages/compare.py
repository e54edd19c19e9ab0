"""/compare: two plans side by side; which ones stands in the address."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from service.api.dependencies import PartsOf, Reader
from service.report.figures import figures_of
from service.store.sessions import SessionFilter, get_session, list_sessions
from service.store.states import COMPLETED
from service.web.error_pages import PageRoute
from service.web.rendering import page
from service.web.views.compare import PLANS, Comparison, side_of
from service.web.views.sessions import Line

RECENT = 60

router = APIRouter(route_class=PageRoute)

SessionId = Annotated[str | None, Query(max_length=64)]
Chosen = Annotated[list[str], Query(alias="s", max_length=50, description="sessions ticked in the list")]
Which = Annotated[str, Query(max_length=10)]


@router.get("/compare")
def show(
    request: Request,
    parts: PartsOf,
    caller: Reader,
    a: SessionId = None,
    b: SessionId = None,
    a_plan: Which = "1",
    b_plan: Which = "1",
    s: Chosen = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    a, b = a or (s[0] if s else None), b or (s[1] if len(s) > 1 else None)
    with parts.database.read() as conn:
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
