"""/knowledge: playbooks and cases, listed, searched and read; a case confirmed or refuted."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import RedirectResponse, Response

from service.api.dependencies import Approver, PartsOf, Reader
from service.api.routes import knowledge
from service.api.schemas.knowledge import Kind, MarkCreate, Status
from service.web.error_pages import PageRoute
from service.web.forms import CheckedForm
from service.web.rendering import page
from service.web.views.knowledge import KINDS, STATUSES, EntryView, hit_view, list_address
from tools.errors import InputError

LINES = 40
HITS = 20

router = APIRouter(prefix="/knowledge", route_class=PageRoute)

Text = Annotated[str, Query(max_length=1000)]
Word = Annotated[str, Query(max_length=20)]
EntryCursor = Annotated[str | None, Query(max_length=120)]


@router.get("")
def show(
    request: Request,
    parts: PartsOf,
    caller: Reader,
    q: Text = "",
    kind: Word = "",
    status: Word = "",
    cursor: EntryCursor = None,
) -> Response:
    chosen: dict[str, str | None] = {"q": q, "kind": kind, "status": status}
    following, limitation, wanted = None, None, (_kind(kind), _status(status))
    if q.strip():
        found = knowledge.search(parts, caller, q, HITS)
        entries = [hit_view(hit) for hit in found.items]
        entries = [one for one in entries if _fits(one, *wanted)]
        limitation = found.limitation
    else:
        listed = knowledge.list_entries(parts, caller, *wanted, cursor, LINES)
        entries, following = [EntryView(one) for one in listed.items], listed.next_cursor
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
def show_entry(id: knowledge.EntryId, request: Request, parts: PartsOf, caller: Reader) -> Response:
    entry = EntryView(knowledge.get_entry(id, parts, caller))
    return page(request, "knowledge_entry", caller, one=entry, statuses=STATUSES)


@router.post("/{id}/mark")
def mark(id: knowledge.EntryId, form: CheckedForm, parts: PartsOf, caller: Approver) -> Response:
    reason, status = form.get("reason", ""), _status(form.get("status", ""))
    if not reason:
        raise InputError("reason", "nothing", "say why, for those who read it later")
    if status is None:
        raise InputError("status", form.get("status"), f"allowed: {', '.join(STATUSES)}")
    knowledge.mark_case(id, MarkCreate(status=status, reason=reason), parts, caller)
    return RedirectResponse(f"/knowledge/{id}", 303)


def _fits(one: EntryView, kind: Kind | None, status: Status | None) -> bool:
    return kind in (None, one.entry.kind) and status in (None, one.entry.status)


def _kind(given: str) -> Kind | None:
    if given and given not in KINDS:
        raise InputError("kind", given, f"allowed: {', '.join(KINDS)}")
    return given or None  # type: ignore[return-value]


def _status(given: str) -> Status | None:
    if given and given not in STATUSES:
        raise InputError("status", given, f"allowed: {', '.join(STATUSES)}")
    return given or None  # type: ignore[return-value]
