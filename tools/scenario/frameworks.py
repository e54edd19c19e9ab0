"""What a training framework does by default and refuses (`kb_seed/frameworks/NAME.toml`), and open fields of
a plan or cluster filled from those defaults.

`recompute` stays None if not stated: the cost model uses none if that fits, else selective, else full.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field, create_model

import kb_seed
from tools.errors import DataError
from tools.scenario.fields import Integer, JsonObject
from tools.scenario.model import Record
from tools.scenario.spec import MAX_DEVICES, MAX_NAME, PLAN_ROLES, Plan, PlanValue

GENERAL = "general"


@dataclass(frozen=True, slots=True)
class RuleData:
    """One row of a framework's rules; `values` only if the check compares with a list."""

    check: str
    field: str
    reason: str
    source: str
    values: tuple[int | str, ...] = ()


@dataclass(frozen=True, slots=True)
class FrameworkData:
    """Defaults for what a plan leaves open (`vpp` 0: as many chunks as the layers allow), and rules in the
    order they are checked. `recompute_layers`: whether it can recompute only some layers of a stage.
    `practice`: what its users do beyond the rules. `writable`: the values that its own configuration can
    express, if not all."""

    name: str
    vpp: int
    etp: int
    sequence_parallel: bool
    sharding_stage: int
    schedule: str
    schedule_interleaved: str
    recompute_layers: bool
    rules: tuple[RuleData, ...]
    practice: tuple[RuleData, ...]
    writable: Mapping[str, tuple[PlanValue, ...]]


@cache
def get_framework(name: str) -> FrameworkData:
    """The facts of a framework; a name that passed `TrainingSpec` always has a file."""
    data = framework_table(name)
    rules, practice = (
        tuple(_rule(name, row) for row in data.get(part, [])) for part in ("rules", "practice")
    )
    writable = {field: tuple(values) for field, values in data.get("writable", {}).items()}
    try:
        defaults = {"recompute_layers": False, **data["defaults"]}
        return FrameworkData(name=name, rules=rules, practice=practice, writable=writable, **defaults)
    except (KeyError, TypeError) as error:
        raise DataError(f"kb_seed/frameworks/{name}.toml: bad defaults: {error}") from error


@cache
def get_general_rules(part: str = "rules") -> tuple[RuleData, ...]:
    """Rules that follow from the meaning of the fields, and practice, whatever the framework."""
    return tuple(_rule(GENERAL, row) for row in framework_table(GENERAL)[part])


@cache
def framework_table(name: str) -> dict[str, Any]:
    """A framework's data file as it stands."""
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


def _stated_fields() -> dict[str, Any]:
    """The fields of `Plan`; one that may be open takes null too and may be absent."""
    fields: dict[str, Any] = {}
    for name, field in Plan.model_fields.items():
        validators = [item for item in field.metadata if isinstance(item, BeforeValidator)]
        bounds = [item for item in field.metadata if item not in validators]
        is_open = PLAN_ROLES[name].may_be_open
        # Bounds stay outside of the union with null: there pydantic writes them into the JSON schema.
        annotation: Any = Annotated[field.annotation, *validators, None]
        fields[name] = (
            Annotated[annotation | None if is_open else annotation, *bounds],
            None if is_open else ...,
        )
    return fields


if TYPE_CHECKING:

    class StatedPlan(Record):
        """Has the fields of `Plan`, derived below; the search for types sees those that are read by name."""

        dp_shard: int | None
        micro_batch_size: int

else:
    StatedPlan = create_model(
        "StatedPlan",
        __base__=Record,
        __module__=__name__,
        __doc__="A plan as written: null or absent if the source did not say.",
        **_stated_fields(),
        zero_stage_known=(bool | None, None),
    )


class StatedCluster(Record):
    """A cluster as written; the node size may be left to the device."""

    name: str | None = Field(None, min_length=1, max_length=MAX_NAME)
    device: str = Field(min_length=1, max_length=100)
    num_devices: Integer = Field(ge=1, le=MAX_DEVICES)
    devices_per_node: Integer | None = Field(None, ge=1, le=MAX_DEVICES)
    overrides: JsonObject | None = None
    topology: JsonObject | None = None


def resolve_defaults(stated: StatedPlan, framework: str, num_hidden_layers: int) -> Plan:
    """The plan that would really run: open fields get what the framework does by default."""
    data, plan = get_framework(framework), stated.model_dump(exclude={"zero_stage_known"})
    pp, is_split = plan["pp"], plan["sequence_parallel"]
    deepest = max(num_hidden_layers // pp, 1) if pp > 1 else 1
    vpp = plan["vpp"] or data.vpp or deepest
    usual = data.schedule_interleaved if vpp > 1 else data.schedule
    plan |= {
        "vpp": vpp,
        "ep": plan["ep"] or 1,
        "etp": plan["etp"] or data.etp,
        "dp_shard": plan["dp_shard"] or 1,
        # One stage has no schedule, and one tensor rank nothing to split a sequence over.
        "schedule": plan["schedule"] if plan["schedule"] and pp > 1 else usual,
        "sequence_parallel": (data.sequence_parallel if is_split is None else is_split) and plan["tp"] > 1,
    }
    resolved = Plan.model_validate(plan)
    return resolved if stated.dp_shard else resolved.sharded_over_all()
