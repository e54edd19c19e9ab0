"""/knowledge: playbooks and cases, listed, searched and read; cases can be confirmed or refuted."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from service.api.deps import AppDep, Approver, Reader
from service.api.knowledge import (
    EntryId,
    Kind,
    MarkCreate,
    Status,
    get_known_entry,
    mark_entry,
    start_after,
)
from service.render.text import format_value, humanize, seconds
from service.strict_json import JsonObject
from service.web.forms import CheckedForm
from service.web.rendering import PageRoute, page
from tools.errors import InputError
from tools.kb import Entry

KINDS: tuple[str, ...] = get_args(Kind)
STATUSES: tuple[str, ...] = get_args(Status)
LESSON = ("lesson", "do", "story")
PARTS = {
    "symptoms": "Symptoms",
    "do": "What to do",
    "why": "Why",
    "effect": "Effect",
    "story": "What happened",
    "lesson": "Lesson",
}
SETUP = ("model", "architecture", "device", "num_devices", "framework", "bottleneck")


@dataclass(frozen=True)
class EntryView:
    entry: Entry

    @cached_property
    def body(self) -> JsonObject:
        return self.entry.json_body()

    @property
    def brief(self) -> str:
        """What it teaches, for a list."""
        return str(next((self.body[name] for name in LESSON if self.body.get(name)), ""))

    @property
    def tags(self) -> list[str]:
        return [value for values in self.entry.facets.values() for value in values]

    @property
    def parts(self) -> list[tuple[str, str]]:
        return self._stated(PARTS)

    @property
    def setup(self) -> list[tuple[str, str]]:
        return self._stated({name: humanize(name) for name in SETUP})

    def _stated(self, names: Mapping[str, str]) -> list[tuple[str, str]]:
        return [(name, format_value(self.body[key])) for key, name in names.items() if self.body.get(key)]

    def _table(self, name: str) -> JsonObject:
        part = self.body.get(name)
        return part if isinstance(part, dict) else {}

    @property
    def plan_changes(self) -> list[tuple[str, str, str]]:
        """Fields of the plan, before and after."""
        before, after = self._table("before"), self._table("after")
        names = dict.fromkeys((*before, *after))
        fields = [(name, format_value(before.get(name)), format_value(after.get(name))) for name in names]
        return [field for field in fields if field[1] != field[2]]

    @property
    def figures(self) -> dict[str, list[tuple[str, str]]]:
        """What was predicted and what was measured, as recorded."""
        parts = {name: self._table(name) for name in ("predicted", "measured")}
        return {
            name: [_figure(key, value) for key, value in part.items()] for name, part in parts.items() if part
        }


def list_address(chosen: Mapping[str, str | None], **changed: str | None) -> str:
    fields = {name: value for name, value in {**chosen, **changed}.items() if value}
    return f"/knowledge?{urlencode(fields)}" if fields else "/knowledge"


def _figure(key: str, value: object) -> tuple[str, str]:
    """Seconds in the unit in which they are easy to read; everything else as it was written."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and key.endswith("_s") and not key.endswith("_per_s"):
        return humanize(key.removesuffix("_s")), seconds(float(str(value)))
    return humanize(key), format_value(value)


LINES = 20
HITS = 20

router = APIRouter(prefix="/knowledge", route_class=PageRoute)

Text = Annotated[str, Query(max_length=1000)]
Word = Annotated[str, Query(max_length=20)]
EntryCursor = Annotated[str | None, Query(max_length=120)]


@router.get("")
def show(
    request: Request,
    app: AppDep,
    caller: Reader,
    q: Text = "",
    kind: Word = "",
    status: Word = "",
    cursor: EntryCursor = None,
) -> Response:
    chosen: dict[str, str | None] = {"q": q, "kind": kind, "status": status}
    base, tenant = app.knowledge.get(), caller.knowledge_tenant
    next_cursor, limitation, filters = None, None, (_kind(kind), _status(status))
    if q.strip():
        hits = [hit.entry for hit in base.search(q, {}, tenant, HITS)]
        entries = [entry for entry in hits if _matches(entry, *filters)]
        limitation = base.limitation
    else:
        listed = base.entries(*filters, tenant)
        start = start_after(cursor, [entry.id for entry in listed])
        entries = list(listed[start : start + LINES])
        next_cursor = entries[-1].id if start + LINES < len(listed) else None
    return page(
        request,
        "knowledge_list",
        caller,
        entries=[EntryView(entry) for entry in entries],
        chosen=chosen,
        kinds=KINDS,
        statuses=STATUSES,
        limitation=limitation,
        next_address=list_address(chosen, cursor=next_cursor) if next_cursor else None,
        first_address=list_address(chosen) if cursor else None,
    )


@router.get("/{id}")
def show_entry(id: EntryId, request: Request, app: AppDep, caller: Reader) -> Response:
    view = EntryView(get_known_entry(app, caller, id))
    return page(request, "knowledge_entry", caller, view=view, statuses=STATUSES)


@router.post("/{id}/mark")
def mark(id: EntryId, form: CheckedForm, app: AppDep, caller: Approver) -> Response:
    reason, status = form.get("reason", ""), _status(form.get("status", ""))
    if not reason:
        raise InputError("reason", "nothing", "say why, for later readers")
    if status is None:
        raise InputError("status", form.get("status"), f"allowed: {', '.join(STATUSES)}")
    mark_entry(app, caller, id, MarkCreate(status=status, reason=reason))
    return RedirectResponse(f"/knowledge/{id}", 303)


def _matches(entry: Entry, kind: Kind | None, status: Status | None) -> bool:
    return kind in (None, entry.kind) and status in (None, entry.status)


def _kind(name: str) -> Kind | None:
    if name and name not in KINDS:
        raise InputError("kind", name, f"allowed: {', '.join(KINDS)}")
    return name or None  # type: ignore[return-value]


def _status(name: str) -> Status | None:
    if name and name not in STATUSES:
        raise InputError("status", name, f"allowed: {', '.join(STATUSES)}")
    return name or None  # type: ignore[return-value]
