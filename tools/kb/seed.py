"""Reads the playbooks and cases that come with ASAP from `kb_seed/`; any error in them is a DataError."""

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources.abc import Traversable
from typing import Annotated, Literal

import tomli
from pydantic import Field, PlainValidator

from kb_seed import folder
from tools.errors import DataError, InputError
from tools.kb.entries import Architecture, Case, Entry, Playbook, Source, case_entry, check_device
from tools.kb.fields import JsonTable, KnowledgeRecord, Line, LongText, PartialPlan, Slug, checked_fields
from tools.physics.terms import Bottleneck
from tools.scenario.fields import FromList, build
from tools.scenario.frameworks import FrameworkName

_SUFFIX = ".toml"


class SeedMeasurement(KnowledgeRecord):
    """What a shipped case measured, in the unit that `metric` names."""

    metric: Line
    before: int | float | None = None
    after: int | float | None = None
    speedup: int | float | None = None
    note: LongText | None = None


class SeedCase(Case):
    """A case that comes with ASAP: complete, and with its sources."""

    status: Literal["confirmed", "refuted"]
    model: Line
    architecture: Architecture
    device: Slug
    num_devices: int = Field(ge=1, le=10**9)
    framework: FrameworkName
    bottleneck: Bottleneck
    before: PartialPlan
    after: PartialPlan
    measured: Annotated[JsonTable, PlainValidator(lambda value: checked_fields(SeedMeasurement, value))]
    lesson: LongText
    sources: Annotated[tuple[Source, ...], FromList, Field(min_length=1, max_length=64)]


@dataclass(frozen=True)
class Seed:
    """The entries of the seed, playbooks first, and a digest that changes when any of them does."""

    entries: tuple[Entry, ...]
    version: str


@cache
def load_seed() -> Seed:
    return read_seed(folder("playbooks"), folder("cases"))


def read_seed(playbooks: Traversable, cases: Traversable) -> Seed:
    """The seed in these two folders, validated; an absent folder is empty."""
    digest = sha256()
    entries: dict[str, Entry] = {}
    for where, table in ((playbooks, "playbook"), (cases, "case")):
        files = [file for file in where.iterdir() if file.name.endswith(_SUFFIX)] if where.is_dir() else []
        for file in sorted(files, key=lambda file: file.name):
            data, name = file.read_bytes(), f"kb_seed/{where.name}/{file.name}"
            topic = file.name.removesuffix(_SUFFIX)
            digest.update(file.name.encode() + b"\0" + data + b"\0")
            for position, item in enumerate(_tables(name, data, table), start=1):
                label = item.get("id", f"{table} {position}") if isinstance(item, dict) else position
                try:
                    entry = parse_playbook(topic, item) if where is playbooks else parse_seed_case(item)
                except InputError as error:
                    raise DataError(f"{name}: {label}: {error}") from None
                if entry.id in entries:
                    raise DataError(f"{name}: {entry.id}: id: another entry has it too")
                entries[entry.id] = entry
    return Seed(tuple(entries.values()), digest.hexdigest()[:16])


def _tables(name: str, data: bytes, table: str) -> list[object]:
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


def parse_playbook(topic: str, data: object) -> Entry:
    """The playbook of this plain data; its topic is a facet of it."""
    playbook = build(Playbook, data)
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


def parse_seed_case(data: object) -> Entry:
    case = build(SeedCase, data)
    check_device(case.device)
    return case_entry(case, tenant=None, is_seed=True)
