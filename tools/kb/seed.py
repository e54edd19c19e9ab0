"""Reads the playbooks and cases that come with ASAP from `kb_seed/`; whatever is wrong is a DataError.

A file of `kb_seed/playbooks` holds `[[playbook]]` tables and its name is their topic; a file of
`kb_seed/cases` holds `[[case]]` tables. Read once a process. tomli, not tomllib: it is the same parser,
compiled, and the seed is read at every `asap optimize`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources.abc import Traversable
from typing import Any

import tomli

from kb_seed import folder
from tools.errors import DataError
from tools.kb.cases import parse_seed_case
from tools.kb.entry import Entry
from tools.kb.playbooks import parse_playbook
from tools.kb.shape import Fault

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
