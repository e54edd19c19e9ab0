"""/sessions/{id}: what is slow, what is proposed, and whether to believe it."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.dependencies import Id, PartsOf, Reader
from service.errors import ConflictError, NotFoundError
from service.store.events import events_after
from service.store.ids import new_id
from service.store.sessions import get_session
from service.web.asked import Asked
from service.web.error_pages import PageRoute
from service.web.exports import format_for
from service.web.figure_answer import figure_answer
from service.web.rendering import page
from service.web.session_figures import FIGURES
from service.web.validation import find_validation
from service.web.views.accuracy import DENSE, EXPERTS, trust_of
from service.web.views.brought import brought_by_people
from service.web.views.session import session_view
from service.web.views.trail import trail_of
from tools.export import FORMATS
from tools.scenario import RECOMPUTES

router = APIRouter(prefix="/sessions/{id}", route_class=PageRoute)


@router.get("")
def show(id: Id, request: Request, parts: PartsOf, caller: Reader) -> Response:
    with parts.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
        events = events_after(conn, id, 0)
    shown = session_view(row)
    return page(
        request,
        "session",
        caller,
        shown=shown,
        trail=trail_of(events),
        brought=brought_by_people(events),
        formats=FORMATS,
        default_format=format_for(row.request or {}),
        recomputes=RECOMPUTES,
        trust=trust_of(find_validation(), EXPERTS if shown.has_experts else DENSE),
        decision_id=new_id(),
    )


@router.get("/figures/{name}")
def get_figure(
    id: Id, name: str, request: Request, parts: PartsOf, caller: Reader, plan: str = "1", by: str = ""
) -> Response:
    """Plotly's JSON; colours are names of the stylesheet's custom properties."""
    if name not in FIGURES:
        raise NotFoundError("figure", name)
    with parts.database.read() as conn:
        shown = session_view(get_session(conn, caller.tenant, id))
    if shown.view is None:
        raise ConflictError(f"session {id} is {shown.row.state}; there is nothing to draw yet", field="state")
    asked = Asked(parts, request.app.state.searched_spaces, shown, shown.view, plan, by)
    return figure_answer(request, FIGURES[name](asked))
