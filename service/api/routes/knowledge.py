"""/v1/knowledge: playbooks and cases that a tenant sees; its own cases added and marked."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from service.api.dependencies import Approver, Limit, PartsOf, Reader, Submitter, get_request_id
from service.api.schemas.knowledge import (
    CaseCreate,
    EntryPage,
    EntryPublic,
    HitList,
    Kind,
    MarkCreate,
    Status,
    public_entry,
    public_hit,
)
from service.api.strict_route import StrictRoute
from service.errors import NotFoundError
from service.store.audit import record
from tools.errors import InputError

MOST_HITS = 100

router = APIRouter(prefix="/v1/knowledge", tags=["knowledge"], route_class=StrictRoute)

EntryId = Annotated[str, Path(max_length=100)]
EntryCursor = Annotated[str | None, Query(max_length=120, description="`next_cursor` of the page before")]
Query_ = Annotated[str, Query(alias="q", max_length=4000, description="a description of the situation")]
Hits = Annotated[int, Query(ge=1, le=MOST_HITS)]
Facet = Annotated[str | None, Query(max_length=100, description="weighs, and never excludes")]
Devices = Annotated[int | None, Query(ge=1, le=1_000_000, description="the size of the job")]


@router.get("", summary="List playbooks and cases")
def list_entries(
    parts: PartsOf,
    caller: Reader,
    kind: Kind | None = None,
    status: Status | None = None,
    cursor: EntryCursor = None,
    limit: Limit = 50,
) -> EntryPage:
    """What comes with ASAP first, then cases by age."""
    entries = parts.knowledge.get().entries(kind, status, caller.knowledge_tenant)
    start = _after(cursor, [entry.id for entry in entries])
    shown = entries[start : start + limit]
    more = start + limit < len(entries)
    return EntryPage(items=[public_entry(one) for one in shown], next_cursor=shown[-1].id if more else None)


@router.get("/search", summary="Find what answers a situation")
def search(
    parts: PartsOf,
    caller: Reader,
    q: Query_ = "",
    limit: Hits = 5,
    device: Facet = None,
    architecture: Facet = None,
    bottleneck: Facet = None,
    topic: Facet = None,
    framework: Facet = None,
    vendor: Facet = None,
    num_devices: Devices = None,
) -> HitList:
    """By words, by meaning where an embedder is there, and by facets; refuted entries are warnings."""
    given: dict[str, str | int | None] = {
        "device": device,
        "architecture": architecture,
        "bottleneck": bottleneck,
        "topic": topic,
        "framework": framework,
        "vendor": vendor,
        "num_devices": num_devices,
    }
    facets = {name: value for name, value in given.items() if value is not None}
    base = parts.knowledge.get()
    hits = base.search(q, facets, caller.knowledge_tenant, limit)
    return HitList(
        items=[public_hit(hit) for hit in hits], methods=list(base.methods), limitation=base.limitation
    )


@router.get("/{id}", summary="One playbook or case")
def get_entry(id: EntryId, parts: PartsOf, caller: Reader) -> EntryPublic:
    try:
        return public_entry(parts.knowledge.get().get(id, caller.knowledge_tenant))
    except InputError:
        raise NotFoundError("entry", id) from None


@router.post("", status_code=201, summary="Remember a case")
def add_case(given: CaseCreate, parts: PartsOf, caller: Submitter) -> EntryPublic:
    """Adding it again changes nothing; another case under its id is refused."""
    entry = parts.knowledge.get().add(given.body(), by=caller.name[:200], tenant=caller.knowledge_tenant)
    return public_entry(entry)


@router.post("/{id}/mark", summary="Confirm or refute a case")
def mark_case(id: EntryId, given: MarkCreate, parts: PartsOf, caller: Approver) -> EntryPublic:
    """Nothing is deleted: the mark joins the case's history, and counts for this tenant alone."""
    get_entry(id, parts, caller)
    entry = parts.knowledge.get().mark(
        id,
        given.status,
        by=caller.name[:200],
        reason=given.reason,
        tenant=caller.knowledge_tenant,
        measured=given.measured,
    )
    said = given.model_dump(exclude_none=True)
    with parts.database.begin() as conn:
        record(conn, caller.tenant, caller.name, "case.mark", id, get_request_id(), **said)
    return public_entry(entry)


def _after(cursor: str | None, ids: list[str]) -> int:
    if cursor is None:
        return 0
    if cursor not in ids:
        raise InputError("cursor", cursor, "allowed: next_cursor of an earlier page")
    return ids.index(cursor) + 1
