"""What every exporter takes and returns, and values as TOML, YAML and JSON text with a comment on top."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tools.errors import InputError
from tools.scenario import Plan, Scenario


@dataclass(frozen=True, slots=True)
class Export:
    """A configuration file as text; the notes say what the file alone does not decide."""

    format: str
    file_name: str
    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """A scenario whose plan is there, and the numbers that every format derives from the two."""

    scenario: Scenario
    plan: Plan

    @property
    def micro_batches(self) -> int:
        """Micro-batches that a data-parallel rank runs in a step."""
        return self.scenario.training.global_batch_size // (self.plan.dp * self.plan.micro_batch_size)

    @property
    def num_nodes(self) -> int:
        cluster = self.scenario.cluster
        return -(-cluster.num_devices // cluster.devices_per_node)

    @property
    def zero_stage(self) -> int:
        """Sharding over one rank is no sharding."""
        return self.plan.zero_stage if self.plan.dp_shard > 1 else 0

    @property
    def replicas(self) -> int:
        """Groups of data ranks that hold a whole copy of what is sharded."""
        return self.plan.dp * self.plan.cp // (self.plan.dp_shard if self.zero_stage else 1)

    def refuse(self, field: str, reason: str) -> InputError:
        """The error for a field of the plan that a format has no words for."""
        return InputError(f"plan.{field}", getattr(self.plan, field), reason)

    def refuse_precision(self, format_name: str, known: Iterable[str]) -> InputError:
        given = self.scenario.training.precision
        return InputError("training.precision", given, f"{format_name} takes {', '.join(known)}")


NO_RECOMPUTE_STATED = "the plan does not state recompute, so the framework's own default holds"


def comment_lines(lines: tuple[str, ...]) -> str:
    return "".join(f"# {line}\n" if line else "#\n" for line in lines)


def toml_text(comments: tuple[str, ...], tables: Mapping[str, Mapping[str, Any]]) -> str:
    parts = [comment_lines(comments)]
    for name, table in tables.items():
        rows = "".join(f"{key} = {_toml_value(value)}\n" for key, value in table.items())
        parts.append(f"[{name}]\n{rows}")
    return "\n".join(parts)


def yaml_text(comments: tuple[str, ...], values: Mapping[str, Any]) -> str:
    return comment_lines(comments) + yaml.safe_dump(dict(values), sort_keys=False, default_flow_style=False)


def json_text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=2, allow_nan=False) + "\n"


def _toml_value(value: object) -> str:
    # TOML writes booleans, numbers, arrays and simple strings as JSON does.
    return json.dumps(value)
