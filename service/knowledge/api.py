"""/v1/knowledge: playbooks and cases; search, add, mark."""

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from service.access.auth import Caller
from service.access.store import record
from service.errors import NotFoundError
from service.http.auth import Approver, Reader, Submitter
from service.http.deps import AppDep, Limit, Public
from service.http.state import AppState
from service.http.strict import StrictRoute
from service.logs import request_id
from service.runtime import LazyKnowledge
from service.strict_json import JsonObject
from tools.errors import InputError
from tools.kb import Entry
from tools.kb.base import MAX_HITS
from tools.kb.entries import EntryKind, EntryStatus

router = APIRouter(prefix="/v1/knowledge", tags=["knowledge"], route_class=StrictRoute)

EntryId = Annotated[str, Path(max_length=100)]
EntryCursor = Annotated[str | None, Query(max_length=120, description="`next_cursor` of the page before")]
Situation = Annotated[str, Query(alias="q", max_length=4000, description="a description of the situation")]
Facet = Annotated[str | None, Query(max_length=100, description="prefers such entries, excludes none")]
JobSize = Annotated[int | None, Query(ge=1, le=1_000_000, description="the size of the job")]


class EntryPublic(Public):
    """Advice with conditions (a playbook), or what once happened (a case)."""

    id: str
    kind: EntryKind
    title: str
    status: EntryStatus
    facets: dict[str, list[str]]
    is_own: bool = Field(description="seen by this tenant only")
    body: Annotated[JsonObject, BeforeValidator(lambda read: read())] = Field(
        validation_alias="json_body", description="all of it; for a case with its history"
    )


class EntryPage(BaseModel):
    items: list[EntryPublic]
    next_cursor: str | None


class HitPublic(Public):
    entry: EntryPublic
    score: float = Field(description="comparable within one search only")
    matched: list[str] = Field(description="lexical, vector, facets: which methods found it")
    warning: bool = Field(description="a measurement contradicts it")


class HitList(BaseModel):
    items: list[HitPublic]
    methods: list[str] = Field(description="the methods that were used")
    limitation: str | None = Field(description="why a search does not use vectors, if it does not")


class CaseCreate(BaseModel):
    """A case to store; its fields are those of the shipped cases."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "id": "racks-2026-11",
                    "title": "Tensor parallelism inside the node halved exposed communication",
                    "status": "hypothesis",
                    "model": "Llama-3.1-70B",
                    "architecture": "dense",
                    "device": "h100-sxm-80gb",
                    "num_devices": 64,
                    "framework": "megatron-core",
                    "bottleneck": "communication",
                    "before": {"tp": 16},
                    "after": {"tp": 8},
                    "story": "Two nodes shared a tensor-parallel group. It was split.",
                    "lesson": "Keep tensor parallelism inside the fast-link domain.",
                    "sources": [{"title": "our own run", "where": "run 4711"}],
                }
            ]
        },
    )

    id: str = Field(max_length=100)


class MarkCreate(BaseModel):
    """Another status for a case, and why; the old one stays in its history."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"status": "refuted", "reason": "slower on our racks"}]},
    )

    status: EntryStatus
    reason: str = Field(min_length=1, max_length=4000)
    measured: JsonObject | None = Field(None, description="replaces what the case stated")


@router.get("", summary="List playbooks and cases")
def list_entries(
    app: AppDep,
    caller: Reader,
    kind: EntryKind | None = None,
    status: EntryStatus | None = None,
    cursor: EntryCursor = None,
    limit: Limit = 50,
) -> EntryPage:
    """What comes with ASAP first, then cases by age."""
    entries, next_cursor = page_of(app, caller, kind, status, cursor, limit)
    return EntryPage(items=[EntryPublic.model_validate(entry) for entry in entries], next_cursor=next_cursor)


@router.get("/search", summary="Find what answers a situation")
def search(
    app: AppDep,
    caller: Reader,
    q: Situation = "",
    limit: Annotated[int, Query(ge=1, le=MAX_HITS)] = 5,
    device: Facet = None,
    architecture: Facet = None,
    bottleneck: Facet = None,
    topic: Facet = None,
    framework: Facet = None,
    vendor: Facet = None,
    num_devices: JobSize = None,
) -> HitList:
    """By words, by meaning if there is an embedder, and by facets; refuted entries are warnings."""
    stated: dict[str, str | int | None] = {
        "device": device,
        "architecture": architecture,
        "bottleneck": bottleneck,
        "topic": topic,
        "framework": framework,
        "vendor": vendor,
        "num_devices": num_devices,
    }
    facets = {name: value for name, value in stated.items() if value is not None}
    base = app.get(LazyKnowledge).get()
    hits = [HitPublic.model_validate(hit) for hit in base.search(q, facets, caller.knowledge_tenant, limit)]
    return HitList(items=hits, methods=list(base.methods), limitation=base.limitation)


@router.get("/{id}", summary="One playbook or case")
def get_entry(id: EntryId, app: AppDep, caller: Reader) -> EntryPublic:
    return EntryPublic.model_validate(get_known_entry(app, caller, id))


@router.post("", status_code=201, summary="Store a case")
def add_case(case: CaseCreate, app: AppDep, caller: Submitter) -> EntryPublic:
    """Idempotent; another case under the same id is refused."""
    body, base = case.model_dump(exclude_unset=True), app.get(LazyKnowledge).get()
    return EntryPublic.model_validate(base.add(body, by=caller.name[:200], tenant=caller.knowledge_tenant))


@router.post("/{id}/mark", summary="Confirm or refute a case")
def mark_case(id: EntryId, mark: MarkCreate, app: AppDep, caller: Approver) -> EntryPublic:
    """Nothing is deleted: the mark is added to the case's history, for this tenant only."""
    return EntryPublic.model_validate(mark_entry(app, caller, id, mark))


def page_of(
    app: AppState,
    caller: Caller,
    kind: EntryKind | None,
    status: EntryStatus | None,
    cursor: str | None,
    limit: int,
) -> tuple[list[Entry], str | None]:
    """The entries after the one that the cursor names, and the cursor of the next page."""
    entries = app.get(LazyKnowledge).get().entries(kind, status, caller.knowledge_tenant)
    ids = [entry.id for entry in entries]
    if cursor is not None and cursor not in ids:
        raise InputError("cursor", cursor, "allowed: next_cursor of an earlier page")
    start = 0 if cursor is None else ids.index(cursor) + 1
    items = list(entries[start : start + limit])
    return items, items[-1].id if start + limit < len(entries) else None


def get_known_entry(app: AppState, caller: Caller, id: str) -> Entry:
    """Raises NotFoundError."""
    try:
        return app.get(LazyKnowledge).get().get(id, caller.knowledge_tenant)
    except InputError:
        raise NotFoundError("entry", id) from None


def mark_entry(app: AppState, caller: Caller, id: str, mark: MarkCreate) -> Entry:
    get_known_entry(app, caller, id)
    base, by, tenant = app.get(LazyKnowledge).get(), caller.name[:200], caller.knowledge_tenant
    entry = base.mark(id, mark.status, by=by, reason=mark.reason, tenant=tenant, measured=mark.measured)
    details = mark.model_dump(exclude_none=True)
    with app.database.begin() as conn:
        record(conn, caller.tenant, caller.name, "case.mark", id, request_id.get(), **details)
    return entry
