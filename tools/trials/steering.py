"""What earlier trials forbid the next proposal: plans that were measured, and those that would fail again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tools.recommend.words import memory_gib
from tools.recommend.workload import Workload
from tools.scenario import Plan
from tools.trials.first_plan import with_recompute

KIN = ("tp", "pp", "vpp", "cp", "ep", "etp", "zero_stage", "sequence_parallel", "recompute", "schedule")
"""What decides which program runs: plans that share it differ in sizes alone, and hang or refuse alike."""
SAME_PROGRAM = ("hang", "communication_timeout", "numerics", "bad_configuration")
OUT_OF_MEMORY = "out_of_memory"
BELOW = 0.98
"""Of the memory that a plan was predicted to need which then had none left."""


def steered(workload: Workload, trials: Sequence[Mapping[str, Any]]) -> Workload:
    """The workload without the plans that trials have settled; each trial has its plan and its outcome."""
    constraints = replace(
        workload.constraints,
        excluded=tuple(_excluded(workload, one) for one in trials),
        max_memory_fraction=min(workload.constraints.max_memory_fraction, *_ceilings(workload, trials), 1.0),
    )
    return replace(workload, constraints=constraints)


def is_settled(plan: Mapping[str, Any], workload: Workload) -> bool:
    """Whether the steered workload leaves this plan out."""
    out, plan = workload.constraints.excluded, _as_searched(dict(plan))
    return any(all(plan[name] == value for name, value in one.items()) for one in out)


def _excluded(workload: Workload, trial: Mapping[str, Any]) -> dict[str, object]:
    """What a plan must share with this one to be left out: all fields, or what makes its program."""
    plan = _as_searched(with_recompute(workload, Plan.model_validate(trial["plan"])).model_dump())
    return {name: plan[name] for name in KIN} if _is_the_programs_fault(trial) else plan


def _as_searched(plan: dict[str, Any]) -> dict[str, Any]:
    """Without a shard group there is no ZeRO: the search knows such plans by one name only."""
    return plan | {"zero_stage": 0} if plan["dp_shard"] == 1 else plan


def _is_the_programs_fault(trial: Mapping[str, Any]) -> bool:
    failed = (trial.get("failure") or {}).get("kind") in SAME_PROGRAM
    return failed or any(one["entry"] == "losses" for one in trial.get("refusals") or ())


def _ceilings(workload: Workload, trials: Sequence[Mapping[str, Any]]) -> list[float]:
    """Shares of the device's memory beyond which plans ran out of it, as this model predicts them."""
    failed = [one for one in trials if (one.get("failure") or {}).get("kind") == OUT_OF_MEMORY]
    predictions = workload.predict([Plan.model_validate(one["plan"]) for one in failed]) if failed else []
    return [BELOW * memory_gib(one) / workload.capacity_gib for one in predictions]
