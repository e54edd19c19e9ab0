"""What every exporter takes and returns, and settings as TOML, YAML and JSON text with a comment on top."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import yaml

from tools.errors import InputError
from tools.scenario import Plan, Scenario

Setting: TypeAlias = "bool | int | float | str | Sequence[str] | Mapping[str, Setting] | None"
"""A value in a configuration file; a mapping is a section."""
Settings = dict[str, Setting]

RECOMPUTE_NOT_STATED = "the plan does not state recompute, so the framework's own default applies"

Name = TypeVar("Name")
Value = TypeVar("Value")


def first_names(table: dict[Name, Value]) -> dict[Value, Name]:
    """The inverse of a table that is read by name; if several names mean the same, the first is written."""
    return {value: name for name, value in reversed(table.items())}


@dataclass(frozen=True, slots=True)
class Export:
    """A configuration file as text; the notes say what the file alone does not decide."""

    format: str
    file_name: str
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExportJob:
    """A scenario that has a plan, and the numbers that every format derives from the two."""

    scenario: Scenario
    plan: Plan

    @property
    def micro_batches(self) -> int:
        """Micro-batches that a data-parallel rank runs per step."""
        return self.scenario.training.global_batch_size // (self.plan.dp * self.plan.micro_batch_size)

    @property
    def num_nodes(self) -> int:
        cluster = self.scenario.cluster
        return -(-cluster.num_devices // cluster.devices_per_node)

    @property
    def zero_stage(self) -> int:
        """The stage in effect: a group of one rank shards nothing."""
        return self.plan.zero_stage if self.plan.dp_shard > 1 else 0

    @property
    def replicas(self) -> int:
        """Copies of what is sharded, over all data ranks."""
        return self.plan.dp * self.plan.cp // (self.plan.dp_shard if self.zero_stage else 1)

    def refuse(self, field: str, reason: str) -> InputError:
        """The error for a field of the plan that a format cannot express."""
        return InputError(f"plan.{field}", getattr(self.plan, field), reason)

    def refuse_precision(self, format_name: str, supported: Iterable[str]) -> InputError:
        precision = self.scenario.training.precision
        return InputError("training.precision", precision, f"{format_name} takes {', '.join(supported)}")


def comment_lines(lines: tuple[str, ...]) -> str:
    return "".join(f"# {line}\n" if line else "#\n" for line in lines)


def toml_text(comments: tuple[str, ...], tables: Mapping[str, Settings]) -> str:
    parts = [comment_lines(comments)]
    for name, table in tables.items():
        # TOML writes booleans, numbers, arrays and simple strings as JSON does.
        rows = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        parts.append(f"[{name}]\n{rows}")
    return "\n".join(parts)


def yaml_text(comments: tuple[str, ...], settings: Settings) -> str:
    return comment_lines(comments) + yaml.safe_dump(settings, sort_keys=False, default_flow_style=False)


def json_text(settings: Settings) -> str:
    return json.dumps(settings, indent=2, allow_nan=False) + "\n"
