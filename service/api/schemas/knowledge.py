"""Playbooks and cases of the knowledge base."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.schemas.public import Public
from service.client_models import Entry, Hit
from tools import kb

Kind = Literal["playbook", "case"]
Status = Literal["confirmed", "hypothesis", "refuted"]


class EntryPublic(Entry, Public):
    """Advice with conditions (a playbook), or what once happened (a case)."""


class EntryPage(BaseModel):
    items: list[EntryPublic]
    next_cursor: str | None


class HitPublic(Hit, Public):
    entry: EntryPublic


class HitList(BaseModel):
    items: list[HitPublic]
    methods: list[str] = Field(description="the ways in which was searched")
    limitation: str | None = Field(description="why a search does not go by meaning, where it does not")


class CaseCreate(BaseModel):
    """A case to remember; its fields are those of the shipped cases."""

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

    def body(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)


class MarkCreate(BaseModel):
    """Another status for a case, and why; the old one stays in its history."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"status": "refuted", "reason": "slower on our racks"}]},
    )

    status: Status
    reason: str = Field(min_length=1, max_length=4000)
    measured: dict[str, Any] | None = Field(None, description="takes the place of what the case said")


def public_entry(entry: kb.Entry) -> EntryPublic:
    return EntryPublic(
        id=entry.id,
        kind=entry.kind,
        title=entry.title,
        status=entry.status,
        facets={name: list(values) for name, values in entry.facets.items()},
        is_own=entry.tenant is not None,
        body=dict(entry.body),
    )


def public_hit(hit: kb.Hit) -> HitPublic:
    return HitPublic(
        entry=public_entry(hit.entry), score=hit.score, matched=list(hit.matched), warning=hit.warning
    )
