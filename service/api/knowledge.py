"""/v1/knowledge: playbooks and cases; search, add, mark."""

from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from service.api.deps import AppDep, Approver, Limit, Reader, StrictRoute, Submitter, get_request_id
from service.api.state import AppState
from service.auth import Caller
from service.db.access import record
from service.errors import NotFoundError
from service.schemas import Public
from service.strict_json import JsonObject
from tools import kb
from tools.errors import InputError
from tools.kb.base import MAX_HITS

Kind = Literal["playbook", "case"]
Status = Literal["confirmed", "hypothesis", "refuted"]


class EntryPublic(Public):
    """Advice with conditions (a playbook), or what once happened (a case)."""

    id: str
    kind: Kind
    title: str
    status: Status
    facets: dict[str, list[str]]
    is_own: bool = Field(description="seen by this tenant only")
    body: JsonObject = Field(description="all of it; for a case with its history")


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

    def body(self) -> JsonObject:
        return self.model_dump(exclude_unset=True)


class MarkCreate(BaseModel):
    """Another status for a case, and why; the old one stays in its history."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"status": "refuted", "reason": "slower on our racks"}]},
    )

    status: Status
    reason: str = Field(min_length=1, max_length=4000)
    measured: JsonObject | None = Field(None, description="replaces what the case stated")


def public_entry(entry: kb.Entry) -> EntryPublic:
    return EntryPublic(
        id=entry.id,
        kind=entry.kind,
        title=entry.title,
        status=entry.status,
        facets={name: list(values) for name, values in entry.facets.items()},
        is_own=entry.is_own,
        body=entry.json_body(),
    )


def public_hit(hit: kb.Hit) -> HitPublic:
    return HitPublic(
        entry=public_entry(hit.entry), score=hit.score, matched=list(hit.matched), warning=hit.warning
    )


router = APIRouter(prefix="/v1/knowledge", tags=["knowledge"], route_class=StrictRoute)

EntryId = Annotated[str, Path(max_length=100)]
EntryCursor = Annotated[str | None, Query(max_length=120, description="`next_cursor` of the page before")]
Query_ = Annotated[str, Query(alias="q", max_length=4000, description="a description of the situation")]
Hits = Annotated[int, Query(ge=1, le=MAX_HITS)]
Facet = Annotated[str | None, Query(max_length=100, description="prefers such entries, excludes none")]
Devices = Annotated[int | None, Query(ge=1, le=1_000_000, description="the size of the job")]


@router.get("", summary="List playbooks and cases")
def list_entries(
    app: AppDep,
    caller: Reader,
    kind: Kind | None = None,
    status: Status | None = None,
    cursor: EntryCursor = None,
    limit: Limit = 50,
) -> EntryPage:
    """What comes with ASAP first, then cases by age."""
    entries = app.knowledge.get().entries(kind, status, caller.knowledge_tenant)
    start = start_after(cursor, [entry.id for entry in entries])
    items = entries[start : start + limit]
    more = start + limit < len(entries)
    return EntryPage(
        items=[public_entry(entry) for entry in items], next_cursor=items[-1].id if more else None
    )


@router.get("/search", summary="Find what answers a situation")
def search(
    app: AppDep,
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
    base = app.knowledge.get()
    hits = base.search(q, facets, caller.knowledge_tenant, limit)
    return HitList(
        items=[public_hit(hit) for hit in hits], methods=list(base.methods), limitation=base.limitation
    )


@router.get("/{id}", summary="One playbook or case")
def get_entry(id: EntryId, app: AppDep, caller: Reader) -> EntryPublic:
    return public_entry(get_known_entry(app, caller, id))


@router.post("", status_code=201, summary="Store a case")
def add_case(case: CaseCreate, app: AppDep, caller: Submitter) -> EntryPublic:
    """Idempotent; another case under the same id is refused."""
    entry = app.knowledge.get().add(case.body(), by=caller.name[:200], tenant=caller.knowledge_tenant)
    return public_entry(entry)


@router.post("/{id}/mark", summary="Confirm or refute a case")
def mark_case(id: EntryId, mark: MarkCreate, app: AppDep, caller: Approver) -> EntryPublic:
    """Nothing is deleted: the mark is added to the case's history, for this tenant only."""
    return public_entry(mark_entry(app, caller, id, mark))


def get_known_entry(app: AppState, caller: Caller, id: str) -> kb.Entry:
    """Raises NotFoundError."""
    try:
        return app.knowledge.get().get(id, caller.knowledge_tenant)
    except InputError:
        raise NotFoundError("entry", id) from None


def mark_entry(app: AppState, caller: Caller, id: str, mark: MarkCreate) -> kb.Entry:
    get_known_entry(app, caller, id)
    entry = app.knowledge.get().mark(
        id,
        mark.status,
        by=caller.name[:200],
        reason=mark.reason,
        tenant=caller.knowledge_tenant,
        measured=mark.measured,
    )
    details = mark.model_dump(exclude_none=True)
    with app.database.begin() as conn:
        record(conn, caller.tenant, caller.name, "case.mark", id, get_request_id(), **details)
    return entry


def start_after(cursor: str | None, ids: list[str]) -> int:
    """The index of the first entry of the page that the cursor names."""
    if cursor is None:
        return 0
    if cursor not in ids:
        raise InputError("cursor", cursor, "allowed: next_cursor of an earlier page")
    return ids.index(cursor) + 1
