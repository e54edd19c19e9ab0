"""/knowledge: playbooks and cases, listed, searched and read; cases can be confirmed or refuted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from service.api import knowledge
from service.api.deps import AppDep, Approver, Reader
from service.api.knowledge import EntryPublic, HitPublic, Kind, MarkCreate, Status
from service.render.text import format_value, humanize, seconds
from service.web.forms import CheckedForm
from service.web.rendering import PageRoute, page
from tools.errors import InputError

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
PLACE = ("model", "architecture", "device", "num_devices", "framework", "bottleneck")


@dataclass(frozen=True)
class EntryView:
    entry: EntryPublic
    found_by: Sequence[str] = ()

    @property
    def brief(self) -> str:
        """What it teaches, for a list."""
        return str(next((self.body[name] for name in LESSON if self.body.get(name)), ""))

    @property
    def body(self) -> Mapping[str, Any]:
        return self.entry.body

    @property
    def tags(self) -> list[str]:
        return [value for values in self.entry.facets.values() for value in values]

    @property
    def parts(self) -> list[tuple[str, str]]:
        return [(name, str(self.body[key])) for key, name in PARTS.items() if self.body.get(key)]

    @property
    def place(self) -> list[tuple[str, str]]:
        return [(humanize(name), format_value(self.body[name])) for name in PLACE if self.body.get(name)]

    @property
    def plan_changes(self) -> list[tuple[str, str, str]]:
        """Fields of the plan, before and after."""
        before, after = self.body.get("before") or {}, self.body.get("after") or {}
        names = dict.fromkeys((*before, *after))
        changes = [(name, format_value(before.get(name)), format_value(after.get(name))) for name in names]
        return [change for change in changes if change[1] != change[2]]

    @property
    def figures(self) -> dict[str, list[tuple[str, str]]]:
        """What was predicted and what was measured, as they were written."""
        figures = {name: self.body.get(name) or {} for name in ("predicted", "measured")}
        return {
            name: [_figure(key, value) for key, value in part.items()]
            for name, part in figures.items()
            if part
        }


def hit_view(hit: HitPublic) -> EntryView:
    return EntryView(hit.entry, hit.matched)


def list_address(chosen: Mapping[str, str | None], **changed: str | None) -> str:
    fields = {name: value for name, value in {**chosen, **changed}.items() if value}
    return f"/knowledge?{urlencode(fields)}" if fields else "/knowledge"


def _figure(key: str, value: object) -> tuple[str, str]:
    """Seconds in the unit in which they are easy to read; everything else as it was written."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and key.endswith("_s") and not key.endswith("_per_s"):
        return humanize(key.removesuffix("_s")), seconds(float(str(value)))
    return humanize(key), format_value(value)


LINES = 40
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
    following, limitation, wanted = None, None, (_kind(kind), _status(status))
    if q.strip():
        hits = knowledge.search(app, caller, q, HITS)
        entries = [hit_view(hit) for hit in hits.items]
        entries = [view for view in entries if _fits(view, *wanted)]
        limitation = hits.limitation
    else:
        listed = knowledge.list_entries(app, caller, *wanted, cursor, LINES)
        entries, following = [EntryView(entry) for entry in listed.items], listed.next_cursor
    return page(
        request,
        "knowledge_list",
        caller,
        entries=entries,
        chosen=chosen,
        kinds=KINDS,
        statuses=STATUSES,
        limitation=limitation,
        next_address=list_address(chosen, cursor=following) if following else None,
        first_address=list_address(chosen) if cursor else None,
    )


@router.get("/{id}")
def show_entry(id: knowledge.EntryId, request: Request, app: AppDep, caller: Reader) -> Response:
    entry = EntryView(knowledge.get_entry(id, app, caller))
    return page(request, "knowledge_entry", caller, one=entry, statuses=STATUSES)


@router.post("/{id}/mark")
def mark(id: knowledge.EntryId, form: CheckedForm, app: AppDep, caller: Approver) -> Response:
    reason, status = form.get("reason", ""), _status(form.get("status", ""))
    if not reason:
        raise InputError("reason", "nothing", "say why, for those who read it later")
    if status is None:
        raise InputError("status", form.get("status"), f"allowed: {', '.join(STATUSES)}")
    knowledge.mark_case(id, MarkCreate(status=status, reason=reason), app, caller)
    return RedirectResponse(f"/knowledge/{id}", 303)


def _fits(view: EntryView, kind: Kind | None, status: Status | None) -> bool:
    return kind in (None, view.entry.kind) and status in (None, view.entry.status)


def _kind(given: str) -> Kind | None:
    if given and given not in KINDS:
        raise InputError("kind", given, f"allowed: {', '.join(KINDS)}")
    return given or None  # type: ignore[return-value]


def _status(given: str) -> Status | None:
    if given and given not in STATUSES:
        raise InputError("status", given, f"allowed: {', '.join(STATUSES)}")
    return given or None  # type: ignore[return-value]
