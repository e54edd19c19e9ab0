"""/: the sessions of a tenant, newest first; filters and search stand in the address."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from service.api.dependencies import Cursor, PartsOf, Reader
from service.api.routes.sessions import parse_labels
from service.store.sessions import SessionFilter, counts_by_state, list_sessions
from service.store.states import STATES
from service.web.error_pages import PageRoute
from service.web.rendering import page
from service.web.views.sessions import session_list
from tools.errors import InputError
from tools.hardware import device_names

LINES = 40

router = APIRouter(route_class=PageRoute)

Word = Annotated[str | None, Query(max_length=200)]


@router.get("/")
def show(
    request: Request,
    parts: PartsOf,
    caller: Reader,
    state: Word = None,
    device: Word = None,
    label: Word = None,
    q: Word = None,
    cursor: Cursor = None,
) -> Response:
    if state and state not in STATES:
        raise InputError("state", state, f"allowed: {', '.join(STATES)}")
    labels = parse_labels([label] if label else [])
    filters = SessionFilter(state=state or None, device=device or None, labels=labels, text=q)
    with parts.database.read() as conn:
        rows, following = list_sessions(conn, caller.tenant, filters, cursor, LINES)
        counts = counts_by_state(conn, caller.tenant)
    given = {"state": state, "device": device, "label": label, "q": q}
    view = session_list(rows, counts, given, cursor, following)
    return page(request, "sessions", caller, view=view, devices=device_names())


@router.get("/sessions")
def show_at_first_page(request: Request) -> Response:
    """Where the addresses of single sessions lead one to look for the list."""
    return RedirectResponse(f"/?{query}" if (query := request.url.query) else "/", 308)
