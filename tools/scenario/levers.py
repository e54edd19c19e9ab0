"""Levers: switches of a framework that leave the numerics alone (`[[levers]]` in kb_seed/frameworks).

A lever is one value of one setting: a field of `training` (`moe_dispatcher`, `cuda_graph`, ...) or of the
plan (`schedule`, `recompute_modules`), with the release that brought it, what a plan needs for it and what
the framework's own configuration says. The search tries them, a proposal lists them under `settings`,
exports write them and imports read them back.
"""

from collections.abc import Callable, Mapping
from functools import cache, reduce
from typing import Annotated

import numpy as np
from pydantic import Field, model_validator

from tools.hardware import get_device
from tools.scenario.columns import BoolArray, PlanColumns, PlanFacts, encode_value, equals
from tools.scenario.fields import FromList, StrictModel
from tools.scenario.frameworks import framework_table, read_row
from tools.scenario.spec import Scenario, TrainingSpec

SettingValue = bool | str
PLAN_SETTINGS = ("schedule", "recompute_modules")
"""Levers that are fields of the plan; all others are fields of `training`."""
FULL_RECOMPUTE = encode_value("recompute", "full")
NO_RECOMPUTE = encode_value("recompute", "none")
NEEDS: Mapping[str, Callable[[PlanFacts], BoolArray]] = {
    "experts": lambda facts: np.asarray(facts.model.is_moe),
    "dense": lambda facts: np.asarray(not facts.model.is_moe),
    "latent_attention": lambda facts: np.asarray(bool(facts.model.kv_lora_rank)),
    "experts_apart": lambda facts: facts.model.is_moe & (facts.plan.ep > 1),
    "experts_together": lambda facts: equals(facts.plan.ep, 1),
    "sequence_parallel": lambda facts: facts.plan.sequence_parallel & (facts.plan.tp > 1),
    "data_parallel": lambda facts: facts.plan.data_ranks > 1,
    "sharded": lambda facts: facts.plan.sharding_stage > 0,
    "unsharded": lambda facts: equals(facts.plan.sharding_stage, 0),
    "unpiped": lambda facts: equals(facts.plan.pp, 1),
    "chunks": lambda facts: (facts.plan.pp > 1) & (facts.plan.vpp > 1),
    "chunks_if_piped": lambda facts: equals(facts.plan.pp, 1) | (facts.plan.vpp > 1),
    "keeps_layers": lambda facts: ~equals(facts.plan.recompute, FULL_RECOMPUTE),
    "recomputes_nothing": lambda facts: facts.plan.recompute <= NO_RECOMPUTE,
    "half_precision": lambda facts: np.asarray(facts.training.precision != "fp32"),
    "unquantized": lambda facts: np.asarray(facts.training.precision in ("fp32", "fp16", "bf16")),
    "on_device": lambda facts: np.asarray(not facts.training.optimizer_offload),
    "static_dispatch": lambda facts: np.asarray(facts.training.moe_dispatcher == "hybridep"),
    "bf16": lambda facts: np.asarray(facts.training.precision == "bf16"),
    "whole_gradients": lambda facts: facts.plan.sharding_stage < 2,
    "not_gathered": lambda facts: np.asarray(facts.training.moe_dispatcher != "allgather"),
}
"""What a lever may need of the workload and the plan, by the words of the data files."""


class Lever(StrictModel):
    setting: str
    value: SettingValue
    source: str
    since: str = ""
    """The month of the release that brought it, as `training.software_date`; "": always there."""
    needs: Annotated[tuple[str, ...], FromList] = ()
    """Names of `NEEDS`; all must hold."""
    generations: Annotated[tuple[str, ...], FromList] = ()
    """Device generations that run it; empty: all."""
    without_modules: Annotated[tuple[str, ...], FromList] = ()
    """Modules that must not be recomputed beside it."""
    is_searched: bool = True
    """False: it changes numerics or what is measured, or nobody has measured it, so it is written and read,
    never proposed."""
    is_default: bool = False
    """What the framework does if its configuration says nothing."""
    writes: dict[str, bool | int | str] = Field(default_factory=dict)
    """What the framework's configuration says, by its own names; empty if the exporter derives it."""

    @model_validator(mode="after")
    def _has_known_names(self) -> "Lever":
        if unknown := set(self.needs) - NEEDS.keys():
            raise ValueError(f"no need is called {', '.join(sorted(unknown))}")
        if self.setting not in (*PLAN_SETTINGS, *TrainingSpec.model_fields):
            raise ValueError(f"no setting is called {self.setting}")
        return self

    def is_released(self, training: TrainingSpec) -> bool:
        """Without a date the newest release is meant."""
        return training.software_date is None or training.software_date >= self.since

    def runs_on(self, device: str) -> bool:
        return not self.generations or get_device(device).generation in self.generations

    def fits(self, facts: PlanFacts) -> BoolArray:
        """The plans that meet all its needs."""
        fits: BoolArray = np.asarray(True)
        for need in self.needs:
            fits = fits & NEEDS[need](facts)
        if self.without_modules and "recompute_modules" in facts.plan:
            modules = encode_value("recompute_modules", self.without_modules)
            fits = fits & equals(facts.plan.recompute_modules & modules, 0)
        return fits

    def suits(self, scenario: Scenario) -> bool:
        """Whether the scenario's own plan meets all its needs."""
        if scenario.plan is None:
            return False
        plans = PlanColumns.of([scenario.plan])
        facts = PlanFacts(scenario.model, scenario.cluster, scenario.training, plans)
        return bool(np.all(self.fits(facts)))


@cache
def framework_levers(framework: str) -> tuple[Lever, ...]:
    """All levers of a framework, whatever the release and the device."""
    return tuple(read_row(Lever, framework, row) for row in framework_table(framework).get("levers", []))


def offered_levers(scenario: Scenario) -> tuple[Lever, ...]:
    """The levers that the scenario's framework has in its release and on its device; needs of plans aside."""
    return tuple(
        lever
        for lever in framework_levers(scenario.training.framework)
        if lever.is_released(scenario.training) and lever.runs_on(scenario.cluster.device)
    )


@cache
def _levers_and_needs(framework: str) -> tuple[Lever, ...]:
    others = framework_table(framework).get("needs", [])
    return framework_levers(framework) + tuple(read_row(Lever, framework, row) for row in others)


def where_offered(setting: str, value: SettingValue | int, facts: PlanFacts) -> BoolArray:
    """The plans that can run a value of a setting, whatever the release; all where the framework's data says
    nothing of it. A number is how much of a switch."""
    switched = value if isinstance(value, str) else bool(value)
    levers = [lever for lever in _levers_and_needs(facts.training.framework) if lever.setting == setting]
    levers = [lever for lever in levers if lever.value == switched and lever.runs_on(facts.cluster.device)]
    return reduce(np.logical_or, [lever.fits(facts) for lever in levers]) if levers else np.asarray(True)
