"""What a training stack does by default and refuses, read from kb_seed/frameworks/NAME.toml.

A rule's check is Python (`checks.py`); which framework applies it, the reason and the source are data.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import kb_seed
from tools.errors import DataError

GENERAL = "general"


@dataclass(frozen=True, slots=True)
class RuleData:
    """One row of a framework's rules; `values` only where the check compares with a list."""

    check: str
    field: str
    reason: str
    source: str
    values: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class FrameworkData:
    """Defaults for what a plan leaves open (`vpp` 0: as many chunks as the layers allow), and rules in the
    order they are checked. `writable`: the values that its own configuration can say, where not all."""

    name: str
    vpp: int
    etp: int
    sequence_parallel: bool
    zero_stage: int
    schedule: str
    schedule_interleaved: str
    rules: tuple[RuleData, ...]
    writable: Mapping[str, tuple[object, ...]]


@cache
def get_framework(name: str) -> FrameworkData:
    """The facts of a framework; a name that passed `TrainingSpec` always has a file."""
    data = _load(name)
    rules = tuple(_rule(name, row) for row in data.get("rules", []))
    writable = {field: tuple(values) for field, values in data.get("writable", {}).items()}
    try:
        return FrameworkData(name=name, rules=rules, writable=writable, **data["defaults"])
    except (KeyError, TypeError) as error:
        raise DataError(f"kb_seed/frameworks/{name}.toml: bad defaults: {error}") from error


@cache
def get_general_rules() -> tuple[RuleData, ...]:
    """Rules that follow from the meaning of the fields, whatever the framework."""
    return tuple(_rule(GENERAL, row) for row in _load(GENERAL)["rules"])


def _load(name: str) -> dict[str, Any]:
    file = kb_seed.folder("frameworks").joinpath(f"{name}.toml")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"kb_seed/frameworks/{name}.toml: {error}") from error


def _rule(name: str, row: dict[str, Any]) -> RuleData:
    try:
        return RuleData(**(row | {"values": tuple(row.get("values", ()))}))
    except TypeError as error:
        raise DataError(f"kb_seed/frameworks/{name}.toml: bad rule {row.get('check')}: {error}") from error
