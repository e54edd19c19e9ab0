"""What the knowledge base holds and what a search returns. Plain data: no parsing, no scoring."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

Kind = Literal["playbook", "case"]
Status = Literal["confirmed", "hypothesis", "refuted"]
Match = Literal["lexical", "vector", "facets"]

KINDS: tuple[Kind, ...] = get_args(Kind)
STATUSES: tuple[Status, ...] = get_args(Status)
BOTTLENECKS = ("compute", "memory", "communication", "pipeline", "host")
ARCHITECTURES = ("dense", "moe")
VENDORS = ("nvidia", "amd", "google", "aws", "cpu")

Facets = Mapping[str, tuple[str, ...]]
"""What an entry is about: facet name to the values it is restricted to. An absent name means any."""


@dataclass(frozen=True)
class Entry:
    """A playbook (advice with conditions) or a case (what once happened), ready to be searched."""

    id: str
    kind: Kind
    title: str
    text: str
    """What a search reads, besides the title."""
    facets: Facets
    status: Status
    tenant: str | None
    """The only one who may see it; None when everybody may."""
    body: Mapping[str, Any]
    """The plain data as it was written; of a case with its history."""
    is_seed: bool = False
    """Comes with ASAP, so it is in no store."""

    @property
    def key(self) -> str:
        """Its name among the entries of all tenants."""
        return f"seed:{self.id}" if self.is_seed else f"case:{self.tenant or ''}/{self.id}"


@dataclass(frozen=True)
class Hit:
    """One entry that a search found."""

    entry: Entry
    score: float
    """Comparable within one search only."""
    matched: tuple[Match, ...]
    """Which ways of searching found it."""

    @property
    def warning(self) -> bool:
        """Measurement spoke against it: to be shown as a warning, not as advice."""
        return self.entry.status == "refuted"
