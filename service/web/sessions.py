"""/: the sessions of a tenant; filters, search and order are in the URL, the columns in a cookie. And the
page on which people label a session and write about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from service.api.deps import AppDep, Id, Reader, Submitter
from service.api.sessions import parse_labels
from service.auth import Caller
from service.db.lifecycle import latest_decisions
from service.db.models import STATES, WAITING, SessionRow
from service.db.sessions import (
    SORTS,
    SessionFilter,
    counts_by_state,
    list_sessions,
    list_sorted,
)
from service.render.text import times
from service.strict_json import JsonObject
from service.web.forms import CheckedForm, labels_of, own_path, whole_number
from service.web.rendering import PageRoute, page, set_cookie
from tools.errors import InputError
from tools.hardware import device_names

FIELDS = ("state", "device", "label", "q", "sort")
COLUMNS = {
    "state": ("State", "state"),
    "decision": ("Decision", None),
    "devices": ("Devices", "num_devices"),
    "bottleneck": ("Limited by", "bottleneck"),
    "predicted": ("Predicted", "speedup"),
    "measured": ("Measured", "measured_speedup"),
    "remark": ("Notes", None),
    "age": ("Age", "created_at"),
    "owner": ("Owner", "owner"),
    "id": ("Id", None),
}
"""Of the list, after the model: what stands above each, and what it is sorted by."""
NUMBERS = ("predicted", "measured")
DEFAULT_COLUMNS = ("state", "decision", "devices", "bottleneck", "predicted", "measured", "age", "owner")
COLUMNS_COOKIE = "asap_columns"
YEAR_S = 365 * 86_400
ACTIONS = {"approve": "approved", "reject": "rejected", "edit": "edited", "submit": "own plan for"}


@dataclass(frozen=True)
class Line:
    row: SessionRow
    decided: JsonObject | None = None

    @property
    def title(self) -> str:
        return self.row.name or self.row.model or "unnamed model"

    @property
    def decision(self) -> str:
        if self.decided is None:
            return "waits for you" if self.row.state == WAITING else ""
        rank = self.decided.get("proposal")
        words = ACTIONS.get(str(self.decided.get("action")), "decided")
        return f"{words} proposal {rank}" if rank else words.removesuffix(" for")

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
    columns: Sequence[str] = DEFAULT_COLUMNS

    @property
    def is_filtered(self) -> bool:
        return any(value for name, value in self.chosen.items() if name != "sort")

    def sort_address(self, by: str) -> str:
        """Largest or newest first, then the other way round, then as it was."""
        now = self.chosen["sort"]
        following = {"": f"-{by}", f"-{by}": by, by: ""}.get(now, f"-{by}")
        return _address({**self.chosen, "sort": following})

    def sorted_as(self, by: str) -> str:
        return {f"-{by}": "descending", by: "ascending"}.get(self.chosen["sort"], "none")


def session_list(
    lines: Sequence[Line],
    counts: Mapping[str, int],
    filters: Mapping[str, str | None],
    cursor: str | None,
    next_cursor: str | None,
    columns: Sequence[str] = DEFAULT_COLUMNS,
) -> SessionList:
    chosen = {name: filters.get(name) or "" for name in FIELDS}
    return SessionList(
        lines=lines,
        columns=columns,
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
    sort: Word = None,
    cursor: Word = None,
    c: Annotated[list[str], Query(max_length=20, description="columns to show from now on")] = [],  # noqa: B006
) -> Response:
    if state and state not in STATES:
        raise InputError("state", state, f"allowed: {', '.join(STATES)}")
    if sort and sort.removeprefix("-") not in SORTS:
        raise InputError("sort", sort, f"allowed: {', '.join(SORTS)}, with - before it the other way round")
    labels = parse_labels([label] if label else [])
    filters = SessionFilter(state=state or None, device=device or None, labels=labels, text=q)
    with app.database.read() as conn:
        if sort:
            start = whole_number("cursor", cursor) if cursor else 0
            rows, has_more = list_sorted(conn, caller.tenant, filters, sort, start, LINES)
            next_cursor = str(start + LINES) if has_more else None
        else:
            rows, next_cursor = list_sessions(conn, caller.tenant, filters, cursor, LINES)
        counts = counts_by_state(conn, caller.tenant)
        decided = latest_decisions(conn, [row.id for row in rows])
    chosen = {"state": state, "device": device, "label": label, "q": q, "sort": sort}
    lines = [Line(row, decided.get(row.id)) for row in rows]
    columns = _columns(c or request.cookies.get(COLUMNS_COOKIE, "").split("."))
    view = session_list(lines, counts, chosen, cursor, next_cursor, columns)
    response = page(
        request, "sessions", caller, view=view, devices=device_names(), columns=COLUMNS, numbers=NUMBERS
    )
    if c:
        set_cookie(request, response, COLUMNS_COOKIE, ".".join(columns), YEAR_S)
    return response


def _columns(names: Sequence[str]) -> tuple[str, ...]:
    """Those that exist, in our order; the usual ones if none does."""
    return tuple(name for name in COLUMNS if name in names) or DEFAULT_COLUMNS


@router.get("/sessions/{id}/notes")
def show_notes(id: Id, request: Request, app: AppDep, caller: Submitter) -> Response:
    row = app.sessions.get(caller, id, report=False)
    labels = ", ".join(f"{name}={value}" if value else name for name, value in row.labels.items())
    return _notes(request, caller, row, labels, row.remark or "", None)


@router.post("/sessions/{id}/notes")
def save_notes(id: Id, request: Request, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
    labels, remark = form.get("labels", ""), form.get("remark", "")
    try:
        app.sessions.annotate(caller, id, labels_of(labels), remark)
    except InputError as error:
        row = app.sessions.get(caller, id, report=False)
        return _notes(request, caller, row, labels, remark, str(error), 422)
    return RedirectResponse(own_path(form.get("next", "/")), 303)


def _notes(
    request: Request, caller: Caller, row: SessionRow, labels: str, remark: str, wrong: str | None,
    status: int = 200,
) -> Response:  # fmt: skip
    following = own_path(request.headers.get("referer", "").partition(request.url.netloc)[2] or "/")
    return page(
        request, "session_notes", caller, status, line=Line(row), labels=labels, remark=remark, wrong=wrong,
        following=following,
    )  # fmt: skip


@router.get("/sessions")
def show_at_first_page(request: Request) -> Response:
    """The list is at `/`; addresses of single sessions suggest this one."""
    return RedirectResponse(f"/?{query}" if (query := request.url.query) else "/", 308)
