"""Reads the playbooks and cases that come with ASAP from `kb_seed/`; any error in them is a DataError."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources.abc import Traversable

import tomli

from kb_seed import folder
from tools.errors import DataError, InputError
from tools.kb.entries import Entry, parse_playbook, parse_seed_case

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
    """The seed in these two folders; an absent folder is empty."""
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
    name: str, topic: str, data: bytes, table: str, parse: Callable[[str, object], Entry]
) -> Iterator[Entry]:
    for position, item in enumerate(_tables(name, data, table), start=1):
        try:
            yield parse(topic, item)
        except InputError as error:
            label = item.get("id", f"{table} {position}") if isinstance(item, dict) else position
            raise DataError(f"{name}: {label}: {error}") from None


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
