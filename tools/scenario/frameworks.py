"""What a training framework is called, does by default and refuses: `kb_seed/frameworks/NAME.toml`.

A framework is known as soon as its data file is there.
"""

import tomllib
from functools import cache
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_core import PydanticCustomError

import kb_seed
from tools.errors import DataError
from tools.names import nearest
from tools.scenario.fields import FromList, ModelT, StrictModel, input_error

GENERAL = "general"
"""The file of the rules that hold whatever the framework."""


@cache
def framework_names() -> tuple[str, ...]:
    """The frameworks that ASAP has facts about, `other` last."""
    files = (file.name for file in kb_seed.folder("frameworks").iterdir())
    names = sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))
    return (*(name for name in names if name not in (GENERAL, "other")), "other")


@cache
def framework_aliases() -> dict[str, str]:
    """What people call frameworks otherwise, with the name in the contract."""
    return {alias: name for name in framework_names() for alias in get_framework(name).aliases}


def framework_name(value: str) -> str:
    """The name in the contract for one of everyday use; anything else as it is."""
    return value if value in framework_names() else framework_aliases().get(value.lower(), value)


def _known_framework(value: object) -> str:
    names = framework_names()
    if isinstance(value, str) and (name := framework_name(value)) in names:
        return name
    close = nearest(value, names) if isinstance(value, str) else []
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    raise PydanticCustomError("framework", "{reason}", {"reason": f"allowed: {', '.join(names)}{hint}"})


FrameworkName = Annotated[
    str,
    BeforeValidator(_known_framework),
    Field(json_schema_extra=lambda schema: schema.update(enum=[*framework_names()])),
]


class RuleData(StrictModel):
    """One row of a framework's rules; `values` only if the check compares with a list."""

    check: str
    field: str
    reason: str
    source: str
    values: Annotated[tuple[int | str, ...], FromList] = ()


class FrameworkData(StrictModel):
    """Defaults for what a plan leaves open, and rules in the order they are checked."""

    name: str
    aliases: Annotated[tuple[str, ...], FromList] = ()
    vpp: int
    """0: as many chunks as the layers allow."""
    etp: int
    sequence_parallel: bool
    sharding_stage: int
    schedule: str
    schedule_interleaved: str
    recompute_layers: bool = False
    """Whether it can recompute only some layers of a stage."""
    rules: Annotated[tuple[RuleData, ...], FromList] = ()
    practice: Annotated[tuple[RuleData, ...], FromList] = ()
    """What its users do beyond the rules."""
    writable: dict[str, Annotated[tuple[int | str | bool, ...], FromList]] = Field(default_factory=dict)
    """The values that its own configuration can express, if not all."""


@cache
def get_framework(name: str) -> FrameworkData:
    """The facts of a framework; a name that passed `TrainingSpec` always has a file."""
    table = framework_table(name)
    parts = {key: table[key] for key in ("aliases", "rules", "practice", "writable") if key in table}
    return read_row(FrameworkData, name, {"name": name, **table.get("defaults", {}), **parts})


@cache
def get_general_rules(part: str = "rules") -> tuple[RuleData, ...]:
    """Rules that follow from the meaning of the fields, and practice, whatever the framework."""
    return tuple(read_row(RuleData, GENERAL, row) for row in framework_table(GENERAL)[part])


@cache
def framework_table(name: str) -> dict[str, Any]:
    """A framework's data file as it stands."""
    file = kb_seed.folder("frameworks").joinpath(f"{name}.toml")
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"kb_seed/frameworks/{name}.toml: {error}") from error


def read_row(cls: type[ModelT], framework: str, row: object) -> ModelT:
    """A part of a framework's data file, checked."""
    try:
        return cls.model_validate(row)
    except ValidationError as error:
        raise DataError(f"kb_seed/frameworks/{framework}.toml: {input_error(error, cls)}") from error
