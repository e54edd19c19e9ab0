"""/sessions/{id}/trail: every step of the graph; one event in full under its number."""

from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from service.api.dependencies import Id, PartsOf, Reader
from service.errors import NotFoundError
from service.store.events import MOST_EVENTS, events_after
from service.store.sessions import get_session
from service.store.states import TERMINAL
from service.web.error_pages import PageRoute
from service.web.rendering import page
from service.web.views.graph import nodes_of, strip_of
from service.web.views.trail import trail_of

MOST_SEQ = 2**31 - 1

router = APIRouter(prefix="/sessions/{id}/trail", route_class=PageRoute)

Seq = Annotated[int, Path(ge=1, le=MOST_SEQ)]


@router.get("")
def show(id: Id, request: Request, parts: PartsOf, caller: Reader) -> Response:
    with parts.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
        events = events_after(conn, id, 0, MOST_EVENTS)
    trail = trail_of(events)
    worked, strip = strip_of(trail)
    return page(
        request,
        "trail",
        caller,
        row=row,
        trail=trail,
        nodes=nodes_of(trail),
        worked=worked,
        strip=strip,
        is_live=row.state not in TERMINAL,
        is_cut=len(events) == MOST_EVENTS,
    )


@router.get("/{seq}")
def show_event(id: Id, seq: Seq, request: Request, parts: PartsOf, caller: Reader) -> Response:
    """What a step was given and what came back."""
    with parts.database.read() as conn:
        row = get_session(conn, caller.tenant, id)
        found = events_after(conn, id, seq - 1, 1)
    if not found or found[0].seq != seq:
        raise NotFoundError("event", str(seq))
    return page(request, "event", caller, row=row, event=found[0])
