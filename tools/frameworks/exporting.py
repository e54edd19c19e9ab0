"""What every exporter takes and returns, and settings as TOML, YAML and JSON text with a comment on top."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar, get_args

import yaml

from tools.cost.traits import framework_traits
from tools.errors import InputError
from tools.hardware import get_device
from tools.scenario import Plan, Scenario
from tools.scenario.levers import PLAN_SETTINGS, Lever, SettingValue, framework_levers, offered_levers
from tools.scenario.spec import Framework

Setting: TypeAlias = "bool | int | float | str | Sequence[str] | Mapping[str, Setting] | None"
"""A value in a configuration file; a mapping is a section."""
Settings = dict[str, Setting]

_FRAMEWORKS: tuple[str, ...] = get_args(Framework)
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
    levers: tuple[Lever, ...] = ()
    """The settings that the file is to state."""

    @property
    def lever_settings(self) -> dict[str, bool | int | str]:
        """What the file says for the levers, by the framework's own names."""
        return {name: value for lever in self.levers for name, value in lever.writes.items()}

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


def chosen_levers(scenario: Scenario, framework: str) -> tuple[Lever, ...]:
    """The levers that a configuration must state so that what runs is what is priced.

    Those that the scenario states, and those that the cost model takes for granted although the framework
    does otherwise by default; only as far as release, device and plan allow them.
    """
    training = scenario.training.model_copy(update={"framework": framework})
    scenario = scenario.model_copy(update={"training": training})
    stated, assumed = stated_settings(scenario), assumed_settings(scenario)
    return tuple(
        lever
        for lever in offered_levers(scenario)
        if assumed.get(lever.setting) == lever.value
        and (lever.setting in stated or not lever.is_default)
        and lever.suits(scenario)
    )


def stated_settings(scenario: Scenario) -> dict[str, SettingValue]:
    """The settings of the scenario's training that levers may change, as far as it states them."""
    names = {lever.setting for name in _FRAMEWORKS for lever in framework_levers(name)} - {*PLAN_SETTINGS}
    values = {name: getattr(scenario.training, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def assumed_settings(scenario: Scenario) -> dict[str, SettingValue]:
    """What is priced: the settings that the scenario states, and what the cost model takes for the others."""
    t, traits = scenario.training, framework_traits(scenario.training.framework)
    is_moe, device = scenario.model.is_moe, get_device(scenario.cluster.device, scenario.cluster.overrides)
    return {
        "overlap_tensor_communication": traits.overlaps_tensor_traffic(t),
        "overlap_gradient_communication": traits.overlaps_data_traffic(t),
        "cuda_graph": traits.has_cuda_graph(t, device, is_moe),
        "fused_loss": traits.has_fused_loss(t),
        **({"moe_dispatcher": traits.dispatcher(t)} if is_moe else {}),
        **stated_settings(scenario),
    }


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
