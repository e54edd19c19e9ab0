"""/: the sessions of a tenant, newest first; filters and search are in the URL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from service.api.deps import AppDep, Cursor, Reader
from service.api.sessions import parse_labels
from service.db.models import STATES, SessionRow
from service.db.sessions import SessionFilter, counts_by_state, list_sessions
from service.render.text import times
from service.web.rendering import PageRoute, page
from tools.errors import InputError
from tools.hardware import device_names

FIELDS = ("state", "device", "label", "q")


@dataclass(frozen=True)
class Line:
    row: SessionRow

    @property
    def title(self) -> str:
        return self.row.model or "unnamed model"

    @property
    def devices(self) -> str:
        return f"{self.row.num_devices:,} × {self.row.device}" if self.row.num_devices else ""

    @property
    def predicted(self) -> str:
        return times(self.row.speedup) if self.row.speedup is not None else ""

    @property
    def measured(self) -> str:
        return times(self.row.measured_speedup) if self.row.measured_speedup is not None else ""


@dataclass(frozen=True)
class Tab:
    name: str
    state: str | None
    count: int
    address: str
    is_chosen: bool


@dataclass(frozen=True)
class SessionList:
    lines: Sequence[Line]
    tabs: Sequence[Tab]
    chosen: Mapping[str, str]
    next_address: str | None
    first_address: str | None
    """None on the first page."""
    total: int

    @property
    def is_filtered(self) -> bool:
        return any(self.chosen.values())


def session_list(
    rows: Sequence[SessionRow],
    counts: Mapping[str, int],
    filters: Mapping[str, str | None],
    cursor: str | None,
    next_cursor: str | None,
) -> SessionList:
    chosen = {name: filters.get(name) or "" for name in FIELDS}
    return SessionList(
        lines=[Line(row) for row in rows],
        tabs=_tabs(counts, chosen),
        chosen=chosen,
        next_address=_address(chosen | {"cursor": next_cursor}) if next_cursor else None,
        first_address=_address(chosen) if cursor else None,
        total=sum(counts.values()),
    )


def _tabs(counts: Mapping[str, int], chosen: Mapping[str, str]) -> list[Tab]:
    state = chosen["state"] or None
    own = [
        Tab(name, name, counts.get(name, 0), _address({**chosen, "state": name}), name == state)
        for name in STATES
        if counts.get(name) or name == state
    ]
    return [Tab("all", None, sum(counts.values()), _address({**chosen, "state": ""}), state is None), *own]


def _address(fields: Mapping[str, str]) -> str:
    stated = {name: value for name, value in fields.items() if value}
    return f"/?{urlencode(stated)}" if stated else "/"


LINES = 40

router = APIRouter(route_class=PageRoute)

Word = Annotated[str | None, Query(max_length=200)]


@router.get("/")
def show(
    request: Request,
    app: AppDep,
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
    with app.database.read() as conn:
        rows, next_cursor = list_sessions(conn, caller.tenant, filters, cursor, LINES)
        counts = counts_by_state(conn, caller.tenant)
    chosen = {"state": state, "device": device, "label": label, "q": q}
    view = session_list(rows, counts, chosen, cursor, next_cursor)
    return page(request, "sessions", caller, view=view, devices=device_names())


@router.get("/sessions")
def show_at_first_page(request: Request) -> Response:
    """The list is at `/`; addresses of single sessions suggest this one."""
    return RedirectResponse(f"/?{query}" if (query := request.url.query) else "/", 308)
