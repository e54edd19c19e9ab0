"""Reads the playbooks and cases that come with ASAP from `kb_seed/`; any error in them is a DataError."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources.abc import Traversable
from typing import Annotated, Any, Literal

import tomli
from pydantic import Field, PlainValidator

from kb_seed import folder
from tools.cost.terms import Bottleneck
from tools.errors import DataError, InputError
from tools.kb.conditions import Condition
from tools.kb.entries import (
    Architecture,
    Case,
    Entry,
    Playbook,
    PlaybookFacets,
    Source,
    case_entry,
    check_device,
)
from tools.kb.fields import KnowledgeRecord, Line, PartialPlan, Prose, Slug, checked_fields, parse_as
from tools.scenario.fields import FromList, JsonObject
from tools.scenario.spec import Framework

_SUFFIX = ".toml"


class Measured(KnowledgeRecord):
    """What a shipped case measured, in the unit that `metric` names."""

    metric: Line
    before: int | float | None = None
    after: int | float | None = None
    speedup: int | float | None = None
    note: Prose | None = None


class SeedCase(Case):
    """A case that comes with ASAP: complete, and with its sources."""

    status: Literal["confirmed", "refuted"]
    model: Line
    architecture: Architecture
    device: Slug
    num_devices: int = Field(ge=1, le=10**9)
    framework: Framework
    bottleneck: Bottleneck
    before: PartialPlan
    after: PartialPlan
    measured: Annotated[JsonObject, PlainValidator(lambda value: checked_fields(Measured, value))]
    lesson: Prose
    sources: Annotated[tuple[Source, ...], FromList, Field(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Seed:
    """The entries of the seed, playbooks first, and a digest that changes when any of them does."""

    entries: tuple[Entry, ...]
    version: str


@cache
def load_seed() -> Seed:
    """The seed that is installed with this package.

    Not validated, to save start-up time: a test proves that it equals what `read_seed` returns.
    """
    return _read_folders(folder("playbooks"), _build_playbook, folder("cases"), _build_case)


def read_seed(playbooks: Traversable, cases: Traversable) -> Seed:
    """The seed in these two folders, validated; an absent folder is empty."""
    return _read_folders(playbooks, parse_playbook, cases, lambda _, data: parse_seed_case(data))


def parse_playbook(topic: str, data: object) -> Entry:
    """The playbook of this plain data; its topic is a facet of it."""
    return _playbook_entry(topic, parse_as(Playbook, data))


def parse_seed_case(data: object) -> Entry:
    """A case that comes with ASAP."""
    case = parse_as(SeedCase, data)
    check_device(case.device)
    return case_entry(case, tenant=None, is_seed=True)


Table = dict[str, Any]
"""A table of a TOML file."""
Parser = Callable[[str, Table], Entry]


def _build_playbook(topic: str, data: Table) -> Entry:
    built = _with_tuples(data) | {
        "when": tuple(Condition.model_construct(**_with_tuples(row)) for row in data["when"]),
        "sources": tuple(Source.model_construct(**row) for row in data["sources"]),
    }
    if "facets" in data:
        built["facets"] = PlaybookFacets.model_construct(**_with_tuples(data["facets"]))
    return _playbook_entry(topic, Playbook.model_construct(**built))


def _build_case(_: str, data: Table) -> Entry:
    sources = tuple(Source.model_construct(**row) for row in data["sources"])
    return case_entry(SeedCase.model_construct(**data | {"sources": sources}), tenant=None, is_seed=True)


def _with_tuples(data: Table) -> Table:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def _playbook_entry(topic: str, playbook: Playbook) -> Entry:
    facets = {name: tuple(values) for name, values in playbook.facets if values}
    return Entry(
        id=playbook.id,
        kind="playbook",
        title=playbook.title,
        text="\n".join((playbook.symptoms, playbook.do, playbook.why, playbook.effect)),
        facets={**facets, "topic": (topic,)},
        status="confirmed",
        tenant=None,
        body=playbook,
        is_seed=True,
    )


def _read_folders(
    playbooks: Traversable, parse_playbook: Parser, cases: Traversable, parse_case: Parser
) -> Seed:
    digest = sha256()
    entries: dict[str, Entry] = {}
    for where, table, parse in ((playbooks, "playbook", parse_playbook), (cases, "case", parse_case)):
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


def _read(name: str, topic: str, data: bytes, table: str, parse: Parser) -> Iterator[Entry]:
    for position, item in enumerate(_tables(name, data, table), start=1):
        try:
            yield parse(topic, item)
        except InputError as error:
            label = item.get("id", f"{table} {position}") if isinstance(item, dict) else position
            raise DataError(f"{name}: {label}: {error}") from None


def _tables(name: str, data: bytes, table: str) -> list[Any]:
    try:
        content = tomli.loads(data.decode("utf-8"))
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{name}: not TOML: {error}") from None
    if unknown := content.keys() - {table}:
        raise DataError(f"{name}: {', '.join(sorted(unknown))}: only [[{table}]] belongs in this folder")
    tables = content.get(table, [])
    if not isinstance(tables, list):
        raise DataError(f"{name}: {table}: must be written [[{table}]], once for each")
    return tables
