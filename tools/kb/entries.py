"""Entries, hits and facets of the knowledge base, its errors, and the checks of plain data they are read
with.

Facets weigh and never exclude: a case from another device ranks lower but is still found.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeGuard, get_args

from tools.errors import AsapError, InputError


class KnowledgeError(AsapError):
    """The store of cases does not answer, or answers what cannot be used."""


class EmbeddingError(KnowledgeError):
    """Texts could not be turned into vectors."""


Check = Callable[[str, object], None]

_MOST_CHARACTERS = 4000
_DEEPEST = 8
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
# Escape sequences, lone surrogates (no UTF-8 for them) and marks that reverse the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


class Fault(Exception):
    """What is wrong with one field; never leaves this package."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        super().__init__(field, given, allowed)
        self.field, self.given, self.allowed = field, given, allowed


@dataclass(frozen=True)
class Table:
    """Named fields, each with its check; any other key is a fault."""

    required: Mapping[str, Check]
    optional: Mapping[str, Check] = field(default_factory=dict)

    def __call__(self, path: str, value: object) -> None:
        if not isinstance(value, dict):
            raise Fault(path or "the entry", value, "must be a table")
        if missing := self.required.keys() - value.keys():
            raise Fault(_join(path, min(missing)), None, "is missing")
        for key, item in value.items():
            check = self.required.get(key) or self.optional.get(key)
            if check is None:
                known = ", ".join((*self.required, *self.optional))
                raise Fault(_join(path, key), item, f"is not a field; known: {known}")
            check(_join(path, key), item)


def slug(path: str, value: object) -> None:
    if not isinstance(value, str) or not _SLUG.fullmatch(value):
        raise Fault(path, value, "must be up to 100 of a-z, 0-9, '.', '_' and '-', and start with a-z or 0-9")


def text(at_most: int = _MOST_CHARACTERS, *, empty: bool = False) -> Check:
    def check(path: str, value: object) -> None:
        if not isinstance(value, str) or not (empty or value.strip()):
            raise Fault(path, value, "must be a text")
        if len(value) > at_most:
            raise Fault(path, value, f"has {len(value)} characters; at most {at_most} are kept")
        if found := _UNPRINTABLE.search(value):
            raise Fault(path, value, f"must not hold the control character {found.group()!a}")

    return check


line = text(200)
prose = text()


def one_of(*allowed: str) -> Check:
    def check(path: str, value: object) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise Fault(path, value, f"must be one of {', '.join(allowed)}")

    return check


def number(path: str, value: object) -> None:
    if not is_number(value) or not math.isfinite(value):
        raise Fault(path, value, "must be a finite number")


def whole(path: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10**9:
        raise Fault(path, value, "must be a whole number of at least 1")


def list_of(item: Check, at_least: int = 0, at_most: int = 64) -> Check:
    def check(path: str, value: object) -> None:
        if not isinstance(value, list) or not at_least <= len(value) <= at_most:
            raise Fault(path, value, f"must be a list of {at_least} to {at_most}")
        for position, element in enumerate(value):
            item(f"{path}[{position}]", element)

    return check


def or_null(check: Check) -> Check:
    return lambda path, value: None if value is None else check(path, value)


def plain(path: str, value: object, depth: int = 0) -> None:
    """Any JSON value, of bounded depth and with text that can be printed."""
    if isinstance(value, str):
        text(empty=True)(path, value)
    elif isinstance(value, float):
        number(path, value)
    elif isinstance(value, dict | list):
        if depth >= _DEEPEST:
            raise Fault(path, "a deeper value", f"may be nested {_DEEPEST} deep")
        named = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in named:
            text(200)(path, key if isinstance(value, dict) else str(key))
            plain(_join(path, key), item, depth + 1)
    elif value is not None and not isinstance(value, int):
        raise Fault(path, value, "must be plain JSON")


def plain_table(path: str, value: object) -> None:
    if not isinstance(value, dict):
        raise Fault(path, value, "must be a table")
    plain(path, value)


def is_number(value: object) -> TypeGuard[float]:
    # bool is an int to Python, and a condition "at least true" is a mistake.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


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


FACETS = ("device", "architecture", "scale", "bottleneck", "topic", "framework", "vendor")
_ALLOWED = {"architecture": ARCHITECTURES, "bottleneck": BOTTLENECKS, "vendor": VENDORS}
_SCALES = ((8, "8"), (64, "64"), (512, "512"), (4096, "4096"))
_LARGEST = "more"
# The catalogue's names begin with the family; a test holds this against the catalogue.
_FAMILIES = (("tpu", "google"), ("mi", "amd"), ("trainium", "aws"), ("cpu", "cpu"))
_NVIDIA = ("v100", "a100", "a800", "h100", "h200", "h800", "h20", "b200", "b300", "gb200", "gb300")


def scale_of(num_devices: int) -> str:
    """The size class of a job by its devices: up to 8, 64, 512, 4096, or more."""
    return next((name for most, name in _SCALES if num_devices <= most), _LARGEST)


def vendor_of(device: str) -> str | None:
    """Who makes a device of the catalogue; None for a name of no known family."""
    if device.startswith(_NVIDIA):
        return "nvidia"
    return next((vendor for prefix, vendor in _FAMILIES if device.startswith(prefix)), None)


def read_facets(given: Mapping[str, str | int | Sequence[str]] | None) -> Facets:
    """What a caller asks for, checked; `num_devices` may be given in place of a scale."""
    asked: dict[str, tuple[str, ...]] = {}
    for name, value in (given or {}).items():
        if name == "num_devices":
            asked["scale"] = (_scale(value),)
        elif name in FACETS:
            asked[name] = _values(name, value)
        else:
            raise InputError(f"facets.{name}", value, f"must be one of {', '.join((*FACETS, 'num_devices'))}")
    if "device" in asked and "vendor" not in asked:
        vendors = [vendor for device in asked["device"] if (vendor := vendor_of(device))]
        asked |= {"vendor": tuple(vendors)} if vendors else {}
    return asked


def agreement(asked: Facets, entry: Facets) -> float:
    """From -1 (every facet contradicts) over 0 (nothing to compare) to 1 (every facet agrees).

    The mean over the facets that both name: an entry for every device is not behind one for this device.
    """
    judged = [bool(set(values) & set(entry[name])) for name, values in asked.items() if name in entry]
    return sum(1 if agrees else -1 for agrees in judged) / len(judged) if judged else 0.0


def _scale(value: object) -> str:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError("facets.num_devices", value, "must be a whole number of at least 1")
    return scale_of(value)


def _values(name: str, value: object) -> tuple[str, ...]:
    values = (value,) if isinstance(value, str) else value
    if not isinstance(values, Sequence) or not all(isinstance(item, str) for item in values):
        raise InputError(f"facets.{name}", value, "must be a text or a list of texts")
    allowed = _ALLOWED.get(name)
    for item in values:
        if allowed and item not in allowed:
            raise InputError(f"facets.{name}", item, f"must be one of {', '.join(allowed)}")
    return tuple(values)
