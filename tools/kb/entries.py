"""Entries of the knowledge base: playbooks and cases as typed records, hits, and the errors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Literal, get_args

from pydantic import Field

from tools.errors import AsapError, InputError
from tools.hardware import device_names
from tools.hardware.catalogue import find_vendor
from tools.hardware.device import VENDORS
from tools.kb.conditions import PlaybookCondition
from tools.kb.fields import (
    MAX_CASE_BYTES,
    JsonTable,
    KnowledgeRecord,
    Line,
    LongText,
    Move,
    PartialPlan,
    Slug,
    bounded_text,
)
from tools.names import did_you_mean
from tools.physics.terms import Bottleneck
from tools.scenario.fields import FromList, JsonObject, build
from tools.scenario.frameworks import FrameworkName
from tools.scenario.spec import Plan

EntryKind = Literal["playbook", "case"]
EntryStatus = Literal["confirmed", "hypothesis", "refuted"]
Match = Literal["lexical", "vector", "facets"]
Architecture = Literal["dense", "moe"]

KINDS: tuple[EntryKind, ...] = get_args(EntryKind)
STATUSES: tuple[EntryStatus, ...] = get_args(EntryStatus)
BOTTLENECKS: tuple[str, ...] = get_args(Bottleneck)
ARCHITECTURES: tuple[str, ...] = get_args(Architecture)
SHARED = "/shared"
"""In place of the tenant of a case that others see too; no tenant can be called that."""
SHARED_FIELDS = {
    *("status", "architecture", "device", "num_devices", "framework", "bottleneck", "before", "after")
}
"""What other tenants may learn of a case, besides figures that were measured."""
MEASURED_FIGURES = ("step_time_s", "speedup", "before", "after", "mfu", "tokens_per_s_per_device")
SCALES = (8, 64, 512, 4096)
Facets = Mapping[str, tuple[str, ...]]
"""What an entry is about: facet name to the values it is restricted to. An absent name means any."""


class KnowledgeError(AsapError):
    """The store of cases does not answer, or its answer cannot be used."""


class EmbeddingError(KnowledgeError):
    """Texts could not be turned into vectors."""


class Source(KnowledgeRecord):
    title: Annotated[str, bounded_text(300)]
    where: Annotated[str, bounded_text(500)]


class PlaybookFacets(KnowledgeRecord):
    """What a playbook is about; an absent facet means any."""

    bottleneck: Annotated[tuple[Bottleneck, ...], FromList, Field(min_length=1)] | None = None
    architecture: Annotated[tuple[Architecture, ...], FromList, Field(min_length=1)] | None = None
    vendor: Annotated[tuple[Literal[VENDORS], ...], FromList, Field(min_length=1)] | None = None  # type: ignore[valid-type]


class Playbook(KnowledgeRecord):
    """Advice, and the conditions under which it holds."""

    id: Slug
    title: Line
    when: Annotated[tuple[PlaybookCondition, ...], FromList]
    symptoms: LongText
    do: LongText
    why: LongText
    effect: LongText
    risks: Annotated[tuple[LongText, ...], FromList, Field(min_length=1, max_length=64)]
    sources: Annotated[tuple[Source, ...], FromList, Field(min_length=1, max_length=64)]
    moves: Annotated[tuple[Move, ...], FromList, Field(min_length=1, max_length=64)] = Field(
        (), exclude_if=lambda moves: not moves
    )
    """Changes of plan fields, some relative to a plan; absent from advice that changes none."""
    facets: PlaybookFacets = PlaybookFacets.model_construct()


class Case(KnowledgeRecord):
    """What once happened: a change of a plan, and what came of it."""

    id: Slug
    title: Line
    story: LongText
    status: EntryStatus = "hypothesis"
    model: Line | None = None
    architecture: Architecture | None = None
    device: Slug | None = None
    num_devices: int | None = Field(None, ge=1, le=10**9)
    framework: FrameworkName | None = None
    bottleneck: Bottleneck | None = None
    before: PartialPlan | None = None
    after: PartialPlan | None = None
    scenario: JsonTable | None = None
    predicted: JsonTable | None = None
    measured: JsonTable | None = None
    lesson: LongText | None = None
    facts: JsonTable | None = None
    """What it depended on, by provenance and name."""
    author: Line | None = None
    """Who wrote its words: expert-rules, trial, or a person; a model's words are not kept."""
    sources: Annotated[tuple[Source, ...], FromList, Field(max_length=64)] = ()


class StatusChange(KnowledgeRecord):
    """One line of a case's history: who gave it which status, when and why."""

    at: str
    by: str
    from_: EntryStatus | None = Field(alias="from")
    to: EntryStatus
    reason: str
    measured: JsonTable | None = None


@dataclass(frozen=True)
class Entry:
    """A playbook (advice with conditions) or a case (what once happened), ready to be searched."""

    id: str
    kind: EntryKind
    title: str
    text: str
    """What a search reads, besides the title."""
    facets: Facets
    status: EntryStatus
    tenant: str | None
    """The only one who may see it, None for the default tenant; of the seed and of SHARED cases everybody."""
    body: Playbook | Case
    history: tuple[StatusChange, ...] = ()
    """Status changes of a case that was added or marked, oldest first."""
    is_seed: bool = False
    """Comes with ASAP, so it is in no store."""

    @property
    def key(self) -> str:
        """Its name among the entries of all tenants."""
        return f"seed:{self.id}" if self.is_seed else f"case:{self.tenant or ''}/{self.id}"

    @property
    def is_own(self) -> bool:
        """Whether it is seen by one tenant only."""
        return not self.is_seed and self.tenant != SHARED

    def json_body(self) -> JsonObject:
        """What was written, as JSON; of a case with its present status and its history."""
        body: JsonObject = self.body.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if self.history:
            body["status"] = self.status
            body["history"] = [
                change.model_dump(mode="json", by_alias=True, exclude_unset=True) for change in self.history
            ]
        return body


@dataclass(frozen=True)
class Hit:
    """One entry that a search found."""

    entry: Entry
    score: float
    """Comparable within one search only."""
    matched: tuple[Match, ...]
    """Which methods found it."""

    @property
    def warning(self) -> bool:
        """A measurement contradicts it: to be shown as a warning, not as advice."""
        return self.entry.status == "refuted"


def parse_case(data: object) -> Case:
    """A case of the user's own, of bounded size."""
    case = build(Case, data)
    check_size("the case", data)
    if case.device is not None:
        check_device(case.device)
    return case


def check_size(field: str, data: object) -> None:
    size_bytes = len(json.dumps(data).encode())
    if size_bytes > MAX_CASE_BYTES:
        raise InputError(field, f"{size_bytes} bytes", f"must have at most {MAX_CASE_BYTES} bytes as JSON")


def check_device(name: str) -> None:
    if find_vendor(name) is None:
        raise InputError("device", name, did_you_mean(name, device_names()))


def case_entry(
    case: Case, tenant: str | None, *, history: tuple[StatusChange, ...] = (), is_seed: bool = False
) -> Entry:
    """The entry of a case that was checked when it came in.

    A search reads its prose, and its facts in the words that a report would use.
    """
    names = [str(name) for name in (case.model, case.device, case.framework, case.bottleneck) if name]
    before, after = case.before or {}, case.after or {}
    changes = [
        f"{field} {before[field]} to {after[field]}" if field in before else f"{field} {after[field]}"
        for field in Plan.model_fields
        if field in after and before.get(field) != after[field]
    ]
    texts = (case.story, case.lesson, " ".join(names), ", ".join(changes))
    facets = {
        "device": case.device,
        "architecture": case.architecture,
        "bottleneck": case.bottleneck,
        "framework": case.framework,
        "scale": scale_of(case.num_devices) if case.num_devices else None,
        "vendor": find_vendor(case.device) if case.device else None,
    }
    return Entry(
        id=case.id,
        kind="case",
        title=case.title,
        text="\n".join(text for text in texts if text is not None),
        facets={name: (value,) for name, value in facets.items() if value is not None},
        status=case.status,
        tenant=tenant,
        body=case,
        history=history,
        is_seed=is_seed,
    )


def shared_case(case: Case, key: str) -> Case | None:
    """What other tenants may learn of a case: typed facts and measured figures.

    No name, text, scenario or id of its owner; None if nothing was measured.
    """
    measured = {
        name: value
        for name, value in (case.measured or {}).items()
        if name in MEASURED_FIGURES and isinstance(value, int | float) and not isinstance(value, bool)
    }
    if not measured:
        return None
    facts = case.model_dump(include=SHARED_FIELDS, exclude_none=True)
    words = {**dict.fromkeys(("architecture", "num_devices", "device", "framework"), "any"), **facts}
    return Case(
        **facts,
        id=f"shared-{sha256(key.encode()).hexdigest()[:16]}",
        title="{architecture} model on {num_devices} {device}, {framework}".format_map(words),
        story="Measured by another tenant of this installation.",
        measured=measured,
    )


def scale_of(num_devices: int) -> str:
    """The size class of a job by its devices: up to 8, 64, 512, 4096, or more."""
    return next((str(limit) for limit in SCALES if num_devices <= limit), "more")
