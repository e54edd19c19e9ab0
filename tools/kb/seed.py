"""Reads the playbooks and cases that come with ASAP from `kb_seed/`; any error in them is a DataError.

A case of the seed and one from a finished optimization have the same shape.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources.abc import Traversable
from typing import Any

import tomli

from kb_seed import folder
from tools.errors import DataError
from tools.kb.conditions import MOVE_WORDS, PLAN_COUNTS, PLAN_FIELDS, PLAN_FLAGS, PLAN_WORDS, condition
from tools.kb.entries import (
    ARCHITECTURES,
    BOTTLENECKS,
    STATUSES,
    VENDORS,
    Check,
    Entry,
    Fault,
    Table,
    line,
    list_of,
    number,
    one_of,
    or_null,
    plain_table,
    prose,
    scale_of,
    slug,
    text,
    vendor_of,
    whole,
)

SOURCE = Table({"title": text(300), "where": text(500)})


def plan_value(path: str, value: object) -> None:
    """A value that this field of a plan can have."""
    field = path.rpartition(".")[2]
    if field in PLAN_COUNTS:
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 10**6
    else:
        fits = isinstance(value, bool) if field in PLAN_FLAGS else value in PLAN_WORDS[field]
    if not fits:
        raise Fault(path, value, f"is not a value of {field} in a plan")


def move_value(path: str, value: object) -> None:
    """The new value of a plan field, or for a degree a word that depends on the plan."""
    if path.rpartition(".")[2] not in PLAN_COUNTS or value not in MOVE_WORDS:
        plan_value(path, value)


def _moves(path: str, value: object) -> None:
    # dp follows from the device count and the other degrees.
    change = Table({}, {field: move_value for field in PLAN_FIELDS if field != "dp"})
    list_of(change, at_least=1)(path, value)
    for position, move in enumerate(value if isinstance(value, list) else []):
        if not move:
            raise Fault(f"{path}[{position}]", move, "must change a field")


def _facet(*allowed: str) -> Check:
    return list_of(one_of(*allowed), at_least=1)


PLAYBOOK = Table(
    {
        "id": slug, "title": line, "when": list_of(condition), "symptoms": prose, "do": prose,
        "why": prose, "effect": prose, "risks": list_of(prose, at_least=1),
        "sources": list_of(SOURCE, at_least=1),
    },
    {
        "moves": _moves,
        "facets": Table({}, {
            "bottleneck": _facet(*BOTTLENECKS),
            "architecture": _facet(*ARCHITECTURES),
            "vendor": _facet(*VENDORS),
        }),
    },
)  # fmt: skip


def parse_playbook(topic: str, data: Mapping[str, Any]) -> Entry:
    """The playbook of this plain data; its topic is a facet of it."""
    PLAYBOOK("", data)
    facets = {name: tuple(values) for name, values in data.get("facets", {}).items()}
    return Entry(
        id=data["id"],
        kind="playbook",
        title=data["title"],
        text="\n".join(data[field] for field in ("symptoms", "do", "why", "effect")),
        facets={**facets, "topic": (topic,)},
        status="confirmed",
        tenant=None,
        body=data,
        is_seed=True,
    )


MOST_BYTES = 64 * 2**10
"""A case is read by people and by models: what is longer belongs in a file that the case names."""

_PLAN = Table({}, dict.fromkeys(PLAN_FIELDS, plan_value))
# A plan of ours has null where nothing was stated.
_OWN_PLAN = Table({}, dict.fromkeys(PLAN_FIELDS, or_null(plan_value)))
_MEASURED = Table({"metric": line}, {"before": number, "after": number, "speedup": number, "note": prose})
_WHERE = {
    "model": line, "architecture": one_of(*ARCHITECTURES), "device": slug, "num_devices": whole,
    "framework": slug, "bottleneck": one_of(*BOTTLENECKS),
}  # fmt: skip
_HEAD = {"id": slug, "title": line}

SEED_CASE = Table(
    {
        **_HEAD, "status": one_of("confirmed", "refuted"), **_WHERE, "before": _PLAN, "after": _PLAN,
        "measured": _MEASURED, "story": prose, "lesson": prose, "sources": list_of(SOURCE, at_least=1),
    },
)  # fmt: skip
OWN_CASE = Table(
    {**_HEAD, "story": prose},
    {
        "status": one_of(*STATUSES), **_WHERE, "before": _OWN_PLAN, "after": _OWN_PLAN,
        "scenario": plain_table, "predicted": plain_table, "measured": plain_table, "lesson": prose,
        "sources": list_of(SOURCE),
    },
)  # fmt: skip


def parse_seed_case(data: Mapping[str, Any]) -> Entry:
    """A case that comes with ASAP."""
    SEED_CASE("", data)
    return case_entry(data, tenant=None, is_seed=True)


def check_own_case(path: str, value: object) -> None:
    """Raises Fault unless this can be stored as a case."""
    OWN_CASE(path, value)
    check_size(path or "the case", value)


def check_size(path: str, value: object) -> None:
    """Of what passed as plain JSON."""
    size_bytes = len(json.dumps(value).encode())
    if size_bytes > MOST_BYTES:
        raise Fault(path, f"{size_bytes} bytes", f"may have at most {MOST_BYTES} as JSON")


def case_entry(data: Mapping[str, Any], tenant: str | None, *, is_seed: bool = False) -> Entry:
    """The entry of a case that was checked when it came in."""
    return Entry(
        id=data["id"],
        kind="case",
        title=data["title"],
        text="\n".join(_texts(data)),
        facets=_facets(data),
        status=data.get("status", "hypothesis"),
        tenant=tenant,
        body=data,
        is_seed=is_seed,
    )


def _texts(data: Mapping[str, Any]) -> list[str]:
    """What a search reads: the prose, and the facts in the words that a report would use."""
    said = [data[field] for field in ("story", "lesson") if field in data]
    named = [str(data[field]) for field in ("model", "device", "framework", "bottleneck") if field in data]
    before, after = data.get("before", {}), data.get("after", {})
    changed = [
        f"{field} {before[field]} to {value}" if field in before else f"{field} {value}"
        for field, value in after.items()
        if before.get(field) != value
    ]
    return [*said, " ".join(named), ", ".join(changed)]


def _facets(data: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    named = ("device", "architecture", "bottleneck", "framework")
    facets: dict[str, tuple[str, ...]] = {name: (data[name],) for name in named if name in data}
    if "num_devices" in data:
        facets["scale"] = (scale_of(data["num_devices"]),)
    if vendor := vendor_of(data.get("device", "")):
        facets["vendor"] = (vendor,)
    return facets


_SUFFIX = ".toml"


@dataclass(frozen=True)
class Seed:
    """The entries of the seed, playbooks first, and a digest that changes when any of them does."""

    entries: tuple[Entry, ...]
    version: str


@cache
def load_seed() -> Seed:
    """The seed that is installed with this package."""
    return read_seed(folder("playbooks"), folder("cases"))


def read_seed(playbooks: Traversable, cases: Traversable) -> Seed:
    """The seed in these two folders; an absent folder holds nothing."""
    digest = sha256()
    entries: dict[str, Entry] = {}
    for where, table, parse in (
        (playbooks, "playbook", parse_playbook),
        (cases, "case", lambda _, data: parse_seed_case(data)),
    ):
        for file in _files(where):
            data = file.read_bytes()
            digest.update(file.name.encode() + b"\0" + data + b"\0")
            name = f"kb_seed/{where.name}/{file.name}"
            for entry in _read(name, file.name.removesuffix(_SUFFIX), data, table, parse):
                if entry.id in entries:
                    raise DataError(f"{name}: {entry.id}: id: another entry has it too")
                entries[entry.id] = entry
    return Seed(tuple(entries.values()), digest.hexdigest()[:16])


def _files(where: Traversable) -> list[Traversable]:
    if not where.is_dir():
        return []
    return sorted((file for file in where.iterdir() if file.name.endswith(_SUFFIX)), key=lambda f: f.name)


def _read(
    name: str, topic: str, data: bytes, table: str, parse: Callable[[str, Mapping[str, Any]], Entry]
) -> Iterator[Entry]:
    for position, item in enumerate(_tables(name, data, table), start=1):
        try:
            yield parse(topic, item)
        except Fault as fault:
            label = item.get("id", f"{table} {position}") if isinstance(item, Mapping) else position
            raise DataError(f"{name}: {label}: {fault.field}: got {fault.given!r}; {fault.allowed}") from None


def _tables(name: str, data: bytes, table: str) -> list[Any]:
    try:
        content = tomli.loads(data.decode("utf-8"))
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{name}: not TOML: {error}") from None
    if unknown := content.keys() - {table}:
        raise DataError(f"{name}: {', '.join(sorted(unknown))}: only [[{table}]] stands in this folder")
    tables = content.get(table, [])
    if not isinstance(tables, list):
        raise DataError(f"{name}: {table}: must be written [[{table}]], once for each")
    return tables
