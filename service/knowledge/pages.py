"""/knowledge: playbooks and cases, listed, searched and read; cases can be confirmed or refuted."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, TypeVar
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse
from pydantic import JsonValue

from service.knowledge.api import EntryCursor, EntryId, MarkCreate, get_known_entry, mark_entry, page_of
from service.render.text import format_value, humanize, seconds
from service.runtime import LazyKnowledge
from service.strict_json import JsonObject
from service.web.errors import PageRoute
from service.web.forms import CheckedForm
from service.web.rendering import ApproverPage, ReaderPage
from tools.errors import InputError
from tools.kb import Entry
from tools.kb.entries import KINDS, STATUSES

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
LINES = 20
HITS = 20
FilterName = Annotated[str, Query(max_length=20)]
ChosenT = TypeVar("ChosenT", bound=str)

router = APIRouter(prefix="/knowledge", route_class=PageRoute)


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

    def _table(self, name: str) -> Mapping[str, JsonValue]:
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
        """What was predicted and what was measured, as recorded; seconds in a unit that is easy to read."""

        def figure(key: str, value: JsonValue) -> tuple[str, str]:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and key.endswith("_s") and not key.endswith("_per_s"):
                return humanize(key.removesuffix("_s")), seconds(float(str(value)))
            return humanize(key), format_value(value)

        parts = {name: self._table(name) for name in ("predicted", "measured")}
        return {name: [figure(*item) for item in part.items()] for name, part in parts.items() if part}


def list_address(chosen: Mapping[str, str | None], **changed: str | None) -> str:
    fields = {name: value for name, value in {**chosen, **changed}.items() if value}
    return f"/knowledge?{urlencode(fields)}" if fields else "/knowledge"


@router.get("")
def show(
    page: ReaderPage,
    q: Annotated[str, Query(max_length=1000)] = "",
    kind: FilterName = "",
    status: FilterName = "",
    cursor: EntryCursor = None,
) -> Response:
    chosen: dict[str, str | None] = {"q": q, "kind": kind, "status": status}
    wanted = _one_of("kind", kind, KINDS), _one_of("status", status, STATUSES)
    next_cursor, limitation = None, None
    if q.strip():
        base = page.app.get(LazyKnowledge).get()
        hits = [hit.entry for hit in base.search(q, {}, page.caller.knowledge_tenant, HITS)]
        entries = [hit for hit in hits if wanted[0] in (None, hit.kind) and wanted[1] in (None, hit.status)]
        limitation = base.limitation
    else:
        entries, next_cursor = page_of(page.app, page.caller, *wanted, cursor, LINES)
    return page(
        "knowledge_list",
        entries=[EntryView(entry) for entry in entries],
        chosen=chosen,
        kinds=KINDS,
        statuses=STATUSES,
        limitation=limitation,
        next_address=list_address(chosen, cursor=next_cursor) if next_cursor else None,
        first_address=list_address(chosen) if cursor else None,
    )


@router.get("/{id}")
def show_entry(id: EntryId, page: ReaderPage) -> Response:
    view = EntryView(get_known_entry(page.app, page.caller, id))
    return page("knowledge_entry", view=view, statuses=STATUSES)


@router.post("/{id}/mark")
def mark(id: EntryId, form: CheckedForm, page: ApproverPage) -> Response:
    reason, status = form.get("reason", ""), _one_of("status", form.get("status", ""), STATUSES)
    if not reason:
        raise InputError("reason", "nothing", "say why, for later readers")
    if status is None:
        raise InputError("status", form.get("status"), f"allowed: {', '.join(STATUSES)}")
    mark_entry(page.app, page.caller, id, MarkCreate(status=status, reason=reason))
    return RedirectResponse(f"/knowledge/{id}", 303)


def _one_of(field: str, text: str, allowed: tuple[ChosenT, ...]) -> ChosenT | None:
    """None for a field that was left empty."""
    found = next((value for value in allowed if value == text), None)
    if text and found is None:
        raise InputError(field, text, f"allowed: {', '.join(allowed)}")
    return found
