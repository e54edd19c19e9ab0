"""What every exporter takes and returns, and settings as TOML, YAML and JSON text with a comment on top."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import yaml

from tools.errors import InputError
from tools.physics.traits import framework_traits
from tools.scenario import Plan, Scenario
from tools.scenario.frameworks import framework_names
from tools.scenario.levers import PLAN_SETTINGS, Lever, SettingValue, framework_levers
from tools.scenario.recipes import run_training

Setting: TypeAlias = "bool | int | float | str | Sequence[str] | Mapping[str, Setting] | None"
"""A value in a configuration file; a mapping is a section."""
SettingsTree = dict[str, Setting]
K = TypeVar("K")
V = TypeVar("V")

RECOMPUTE_NOT_STATED = "the plan does not state recompute, so the framework's own default applies"


def first_names(table: dict[K, V]) -> dict[V, K]:
    """The inverse of a table that is read by name; if several names mean the same, the first is written."""
    return {value: name for name, value in reversed(table.items())}


@dataclass(frozen=True, slots=True)
class Export:
    """A configuration file as text; the notes say what the file alone does not decide."""

    format: str
    file_name: str
    text: str
    judged_by: str
    """The release whose own code takes files of this format."""
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
    def zero_stage(self) -> int:
        """The stage in effect: a group of one rank shards nothing."""
        return self.plan.sharding_stage

    @property
    def keeps_weights(self) -> bool:
        """FSDP that does not reshard after forward, which others call ZeRO 2."""
        return self.zero_stage == 2 or (self.zero_stage == 3 and self.plan.reshard_after_forward is False)

    @property
    def replicas(self) -> int:
        """Copies of what is sharded, over all data ranks."""
        return self.plan.data_ranks // (self.plan.dp_shard if self.zero_stage else 1)

    def refuse(self, field: str, reason: str) -> InputError:
        """The error for a field of the plan that a format cannot express."""
        return InputError(f"plan.{field}", getattr(self.plan, field), reason)

    def check_precision(self, format_name: str, supported: Iterable[str]) -> None:
        precision, names = self.scenario.training.precision, list(supported)
        if precision not in names:
            raise InputError("training.precision", precision, f"{format_name} takes {', '.join(names)}")


def chosen_levers(scenario: Scenario, framework: str) -> tuple[Lever, ...]:
    """The levers that a configuration must state so that what runs is what is priced.

    Those that the scenario states, and those that the cost model takes for granted although the framework
    does otherwise by default; only as far as device and plan, and for what is stated the release, allow them.
    """
    t = scenario.training.model_copy(update={"framework": framework})
    scenario = scenario.model_copy(update={"training": t})
    stated, traits, run = stated_settings(scenario), framework_traits(framework), run_training(scenario)
    by_itself: dict[str, SettingValue] = {
        "overlap_tensor_communication": traits.overlaps_tensor_traffic(run),
        "overlap_gradient_communication": traits.overlaps_data_traffic(run),
        "cuda_graph": "none",
        "fused_loss": traits.has_fused_loss(run),
        **({"moe_dispatcher": "alltoall"} if scenario.model.is_moe else {}),
    }
    running = scenario.model_copy(update={"training": run})
    priced = by_itself | stated_settings(running)
    return tuple(
        lever
        for lever in framework_levers(framework)
        if priced.get(lever.setting) == lever.value
        and lever.runs_on(scenario.cluster.device)
        and (lever.setting in stated or not lever.is_default)
        and (lever.is_released(t) or priced[lever.setting] != {**by_itself, **stated}.get(lever.setting))
        and lever.suits(running)
    )


def stated_settings(scenario: Scenario) -> dict[str, SettingValue]:
    """The settings of the scenario's training that levers may change, as far as it states them."""
    levers = [lever for name in framework_names() for lever in framework_levers(name)]
    names = {lever.setting for lever in levers} - {*PLAN_SETTINGS}
    values = {name: getattr(scenario.training, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def nested(settings: Mapping[str, Setting]) -> SettingsTree:
    """Settings by dotted names as sections."""
    tree: SettingsTree = {}
    for name, value in settings.items():
        *sections, key = name.split(".")
        inner = tree
        for section in sections:
            deeper = inner.setdefault(section, {})
            assert isinstance(deeper, dict), name
            inner = deeper
        inner[key] = value
    return tree


def section_of(tree: SettingsTree, name: str) -> SettingsTree:
    """A section, taken out of the tree; empty if it has none."""
    section = tree.pop(name, {})
    return dict(section) if isinstance(section, Mapping) else {}


def comment_lines(lines: tuple[str, ...]) -> str:
    return "".join(f"# {line}\n" if line else "#\n" for line in lines)


def toml_text(comments: tuple[str, ...], tables: Mapping[str, SettingsTree]) -> str:
    parts = [comment_lines(comments)]
    for name, table in tables.items():
        # TOML writes booleans, numbers, arrays and simple strings as JSON does.
        rows = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        parts.append(f"[{name}]\n{rows}")
    return "\n".join(parts)


def yaml_text(comments: tuple[str, ...], settings: SettingsTree) -> str:
    return comment_lines(comments) + yaml.safe_dump(settings, sort_keys=False, default_flow_style=False)


def json_text(settings: SettingsTree) -> str:
    return json.dumps(settings, indent=2, allow_nan=False) + "\n"
