"""/: the sessions of a tenant, as the URL filters and orders them; and the page to label and annotate one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from graph.headline import Headline
from graph.request import Decision
from service.http.deps import Id
from service.sessions.api import parse_labels
from service.sessions.lifecycle import latest_decisions
from service.sessions.model import STATES, WAITING, SessionPatch, SessionRow
from service.sessions.store import SORTS, SessionFilter, counts_by_state, list_sessions, list_sorted
from service.sessions.usecases import Sessions
from service.web.csrf import set_cookie
from service.web.errors import PageRoute
from service.web.forms import CheckedForm, labels_of, labels_text, own_path, whole_number
from service.web.rendering import Page, ReaderPage, SubmitterPage
from tools.errors import InputError
from tools.hardware import device_names
from tools.physics.terms import Bottleneck
from tools.scenario.fields import build

COLUMNS = {
    "state": ("State", "state"),
    "decision": ("Decision", None),
    "devices": ("Devices", "num_devices"),
    "bottleneck": ("Limited by", "bottleneck"),
    "split": ("Where the step goes", None),
    "step": ("Step", None),
    "mfu": ("MFU", None),
    "memory": ("Memory", None),
    "predicted": ("Predicted", "speedup"),
    "measured": ("Measured", "measured_speedup"),
    "remark": ("Notes", None),
    "age": ("Age", "created_at"),
    "owner": ("Owner", "owner"),
    "id": ("Id", None),
}
"""Columns after the model: the heading of each, and what it is sorted by."""
NUMBERS = ("step", "mfu", "memory", "predicted", "measured")
DEFAULT_COLUMNS = (
    *("state", "decision", "devices", "bottleneck", "split", "step", "mfu", "memory"),
    *("predicted", "measured", "age"),
)
COLUMNS_COOKIE = "asap_columns"
DRAWN_AS: dict[Bottleneck, str] = {
    "compute": "compute",
    "memory": "memory_bound_ops",
    "communication": "tp_comm_exposed",
    "pipeline": "pipeline_bubble",
    "host": "host_and_other",
}
YEAR_S = 365 * 86_400
LINES = 40
ACTIONS = {"approve": "approved", "reject": "rejected", "edit": "edited", "submit": "own plan for"}

QueryText = Annotated[str | None, Query(max_length=200)]

router = APIRouter(route_class=PageRoute)


class SplitPart(NamedTuple):
    name: str
    key: str
    """The name of its colour."""
    x: float
    width: float


@dataclass(frozen=True)
class SessionLine:
    row: SessionRow
    decided: Decision | None = None

    @property
    def title(self) -> str:
        return self.row.name or self.row.model or "unnamed model"

    @property
    def decision(self) -> str:
        if self.decided is None:
            return "waits for you" if self.row.state == WAITING else ""
        return f"{ACTIONS[self.decided.action]} proposal {self.decided.proposal}"

    @property
    def headline(self) -> Headline | None:
        return self.row.headline

    @property
    def split(self) -> list[SplitPart]:
        """A bar of 100 by the shares of the step, in a fixed order."""
        parts, x = [], 0.0
        for key, share in self.headline.split.items() if self.headline else ():
            parts.append(SplitPart(key, DRAWN_AS[key], x, 100 * share))
            x += 100 * share
        return parts

    @property
    def split_in_words(self) -> str:
        return ", ".join(f"{part.name} {part.width:.0f}%" for part in self.split)

    @property
    def devices(self) -> str:
        return f"{self.row.num_devices:,} × {self.row.device}" if self.row.num_devices else ""


@dataclass(frozen=True)
class Tab:
    name: str
    count: int
    address: str
    is_chosen: bool


@dataclass(frozen=True)
class SessionList:
    lines: Sequence[SessionLine]
    counts: Mapping[str, int]
    """Numbers of all sessions, by state."""
    chosen: Mapping[str, str]
    """The fields of the address, empty where it states none."""
    cursor: str | None = None
    next_cursor: str | None = None
    columns: Sequence[str] = DEFAULT_COLUMNS

    def address(self, **changed: str) -> str:
        stated = {name: value for name, value in {**self.chosen, **changed}.items() if value}
        return f"/?{urlencode(stated)}" if stated else "/"

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def tabs(self) -> list[Tab]:
        chosen = self.chosen["state"]
        names = [name for name in STATES if self.counts.get(name) or name == chosen]
        tabs = [Tab("all", self.total, self.address(state=""), not chosen)]
        return tabs + [
            Tab(name, self.counts.get(name, 0), self.address(state=name), name == chosen) for name in names
        ]

    @property
    def next_address(self) -> str | None:
        return self.address(cursor=self.next_cursor) if self.next_cursor else None

    @property
    def first_address(self) -> str | None:
        """None on the first page."""
        return self.address() if self.cursor else None

    @property
    def is_filtered(self) -> bool:
        return any(value for name, value in self.chosen.items() if name != "sort")

    def sort_address(self, by: str) -> str:
        """Largest or newest first, then the other way round, then as it was."""
        return self.address(sort={f"-{by}": by, by: ""}.get(self.chosen["sort"], f"-{by}"))

    def sorted_as(self, by: str) -> str:
        return {f"-{by}": "descending", by: "ascending"}.get(self.chosen["sort"], "none")


@router.get("/")
def show(
    page: ReaderPage,
    state: QueryText = None,
    device: QueryText = None,
    label: QueryText = None,
    q: QueryText = None,
    sort: QueryText = None,
    cursor: QueryText = None,
    c: Annotated[list[str], Query(max_length=20, description="columns to show from now on")] = [],  # noqa: B006
) -> Response:
    if state and state not in STATES:
        raise InputError("state", state, f"allowed: {', '.join(STATES)}")
    if sort and sort.removeprefix("-") not in SORTS:
        raise InputError("sort", sort, f"allowed: {', '.join(SORTS)}, with - before it the other way round")
    tenant, labels = page.caller.tenant, parse_labels([label] if label else [])
    filters = SessionFilter(state=state or None, device=device or None, labels=labels, text=q)
    with page.app.database.read() as conn:
        if sort:
            start = whole_number("cursor", cursor) if cursor else 0
            rows, has_more = list_sorted(conn, tenant, filters, sort, start, LINES)
            next_cursor = str(start + LINES) if has_more else None
        else:
            rows, next_cursor = list_sessions(conn, tenant, filters, cursor, LINES)
        counts = counts_by_state(conn, tenant)
        decided = latest_decisions(conn, [row.id for row in rows])
    stated = {"state": state, "device": device, "label": label, "q": q, "sort": sort}
    chosen = {name: value or "" for name, value in stated.items()}
    lines = [SessionLine(row, decided.get(row.id)) for row in rows]
    wanted = c or page.request.cookies.get(COLUMNS_COOKIE, "").split(".")
    columns = tuple(name for name in COLUMNS if name in wanted) or DEFAULT_COLUMNS
    view = SessionList(lines, counts, chosen, cursor, next_cursor, columns)
    response = page("sessions", view=view, devices=device_names(), columns=COLUMNS, numbers=NUMBERS)
    if c:
        set_cookie(page.request, response, COLUMNS_COOKIE, ".".join(columns), YEAR_S)
    return response


@router.get("/sessions/{id}/notes")
def show_notes(id: Id, page: SubmitterPage) -> Response:
    row = page.app.get(Sessions).get(page.caller, id, report=False)
    return _notes(page, row, labels_text(row.labels), row.remark or "")


@router.post("/sessions/{id}/notes")
def save_notes(id: Id, form: CheckedForm, page: SubmitterPage) -> Response:
    labels, remark = form.get("labels", ""), form.get("remark", "")
    sessions = page.app.get(Sessions)
    try:
        patch = build(SessionPatch, {"labels": labels_of(labels), "remark": remark})
        sessions.update(page.caller, id, patch)
    except InputError as error:
        return _notes(page, sessions.get(page.caller, id, report=False), labels, remark, str(error))
    return RedirectResponse(own_path(form.get("next", "/")), 303)


def _notes(page: Page, row: SessionRow, labels: str, remark: str, wrong: str | None = None) -> Response:
    came_from = page.request.headers.get("referer", "").partition(page.request.url.netloc)[2]
    written = {"labels": labels, "remark": remark, "wrong": wrong, "following": own_path(came_from or "/")}
    return page("session_notes", 422 if wrong else 200, line=SessionLine(row), **written)


@router.get("/sessions")
def show_at_first_page(request: Request) -> Response:
    """The list is at `/`; addresses of single sessions suggest this one."""
    return RedirectResponse(f"/?{query}" if (query := request.url.query) else "/", 308)
