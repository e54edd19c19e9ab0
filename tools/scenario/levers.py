"""Levers: switches of a framework that leave the numerics alone (`[[levers]]` in kb_seed/frameworks).

A lever is one value of one setting: a field of `training` (`moe_dispatcher`, `cuda_graph`, ...) or of the
plan (`schedule`, `recompute_modules`), with the release that brought it, what a plan needs for it and what
the framework's own configuration says. The search tries them, a proposal lists them under `settings`,
exports write them and imports read them back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from tools.errors import DataError
from tools.hardware import get_device
from tools.scenario.columns import BoolArray, Facts, columns_of, encode_value, equals
from tools.scenario.frameworks import framework_table
from tools.scenario.spec import Scenario, TrainingSpec

SettingValue = bool | str
PLAN_SETTINGS = ("schedule", "recompute_modules")
"""Levers that are fields of the plan; all others are fields of `training`."""
FULL_RECOMPUTE = encode_value("recompute", "full")


def _is_moe(facts: Facts) -> BoolArray:
    return np.asarray(facts.model.is_moe)


NEEDS: Mapping[str, Callable[[Facts], BoolArray]] = {
    "experts": _is_moe,
    "dense": lambda facts: ~_is_moe(facts),
    "latent_attention": lambda facts: np.asarray(bool(facts.model.kv_lora_rank)),
    "experts_apart": lambda facts: _is_moe(facts) & (facts.plan.ep > 1),
    "experts_together": lambda facts: equals(facts.plan.ep, 1),
    "sequence_parallel": lambda facts: facts.plan.sequence_parallel & (facts.plan.tp > 1),
    "data_parallel": lambda facts: facts.plan.data_ranks > 1,
    "sharded": lambda facts: facts.plan.sharding_stage > 0,
    "unsharded": lambda facts: equals(facts.plan.sharding_stage, 0),
    "unpiped": lambda facts: equals(facts.plan.pp, 1),
    "chunks": lambda facts: (facts.plan.pp > 1) & (facts.plan.vpp > 1),
    "chunks_if_piped": lambda facts: equals(facts.plan.pp, 1) | (facts.plan.vpp > 1),
    "keeps_layers": lambda facts: ~equals(facts.plan.recompute, FULL_RECOMPUTE),
    "half_precision": lambda facts: np.asarray(facts.training.precision != "fp32"),
    "unquantized": lambda facts: np.asarray(facts.training.precision in ("fp32", "fp16", "bf16")),
    "on_device": lambda facts: np.asarray(not facts.training.optimizer_offload),
    "not_gathered": lambda facts: np.asarray(facts.training.moe_dispatcher != "allgather"),
}
"""What a lever may need of the workload and the plan, by the words of the data files."""


@dataclass(frozen=True, slots=True)
class Lever:
    """One value of one setting."""

    setting: str
    value: SettingValue
    source: str
    since: str = ""
    """The month of the release that brought it, as `training.software_date`; "": always there."""
    needs: tuple[str, ...] = ()
    """Names of `NEEDS`; all must hold."""
    generations: tuple[str, ...] = ()
    """Device generations that run it; empty: all."""
    without_modules: tuple[str, ...] = ()
    """Modules that must not be recomputed beside it."""
    is_default: bool = False
    """What the framework does if its configuration says nothing."""
    writes: Mapping[str, bool | int | str] = field(default_factory=dict)
    """What the framework's configuration says, by its own names; empty if the exporter derives it."""

    def is_released(self, training: TrainingSpec) -> bool:
        """Without a date the newest release is meant."""
        return training.software_date is None or training.software_date >= self.since

    def fits(self, facts: Facts) -> BoolArray:
        """The plans that meet all its needs."""
        fits: BoolArray = np.asarray(True)
        for need in self.needs:
            fits = fits & NEEDS[need](facts)
        return fits

    def suits(self, scenario: Scenario) -> bool:
        """Whether the scenario's own plan meets all its needs."""
        plan = scenario.plan
        if plan is None or {*self.without_modules} & {*(plan.recompute_modules or ())}:
            return False
        facts = Facts(scenario.model, scenario.cluster, scenario.training, columns_of([plan]))
        return bool(np.all(self.fits(facts)))


@cache
def framework_levers(framework: str) -> tuple[Lever, ...]:
    """All levers of a framework, whatever the release and the device."""
    return tuple(_lever(framework, row) for row in framework_table(framework).get("levers", []))


def offered_levers(scenario: Scenario) -> tuple[Lever, ...]:
    """The levers that the scenario's framework has in its release and on its device; needs of plans aside."""
    generation = get_device(scenario.cluster.device).generation
    return tuple(
        lever
        for lever in framework_levers(scenario.training.framework)
        if lever.is_released(scenario.training) and (not lever.generations or generation in lever.generations)
    )


def _lever(framework: str, row: dict[str, Any]) -> Lever:
    try:
        lists = {name: tuple(row.get(name, ())) for name in ("needs", "generations", "without_modules")}
        lever = Lever(**{**row, **lists})
    except TypeError as error:
        raise DataError(
            f"kb_seed/frameworks/{framework}.toml: bad lever {row.get('setting')}: {error}"
        ) from error
    if unknown := set(lever.needs) - NEEDS.keys():
        raise DataError(
            f"kb_seed/frameworks/{framework}.toml: no need is called {', '.join(sorted(unknown))}"
        )
    if lever.setting not in (*PLAN_SETTINGS, *TrainingSpec.model_fields):
        raise DataError(f"kb_seed/frameworks/{framework}.toml: no setting is called {lever.setting}")
    return lever
