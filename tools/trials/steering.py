"""Which plan comes first, and which plans earlier trials rule out for the next proposal."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from tools.errors import InfeasibleError, InputError
from tools.recommend.report import PlanFields
from tools.recommend.workload import Workload
from tools.scenario import RECOMPUTES, SEARCHED_FIELDS, Plan, get_framework, resolve_defaults
from tools.scenario.frameworks import StatedPlan
from tools.scenario.spec import sharding
from tools.search.space import divisors
from tools.trials.gate import Refusal
from tools.trials.order import TrialFailure


def with_recompute(workload: Workload, plan: Plan) -> Plan:
    """The plan with its recomputation stated: none if that fits, else selective, else full."""
    if plan.recompute is not None:
        return plan
    stated = [plan.model_copy(update={"recompute": name}) for name in RECOMPUTES]
    return next((option for option in stated if _fits(workload, option)), stated[-1])


def default_plan(workload: Workload) -> Plan:
    """Data parallel over all devices with the framework's own sharding; split further only if that is
    refused or does not fit. Raises InfeasibleError if no such plan is legal and fits."""
    for plan in _candidates(workload):
        if workload.refusal(plan) is None and _is_allowed(workload, plan) and _fits(workload, plan):
            return plan
    raise InfeasibleError("no plan that the framework would take by default is legal and fits: give a plan")


def _candidates(workload: Workload) -> Iterator[Plan]:
    """Fewest model-parallel ranks first, tensor ranks before stages, the least recomputation first."""
    devices, training = workload.scenario.cluster.num_devices, workload.scenario.training
    layers = workload.scenario.model.num_hidden_layers
    usual = get_framework(training.framework).sharding_stage
    stages = sorted(range(4), key=lambda stage: (stage != usual, -stage))
    for ranks in divisors(devices):
        for tp in sorted(divisors(ranks), reverse=True):
            for recompute in RECOMPUTES:
                for stage in stages:
                    plan = _plan(tp, ranks // tp, devices // ranks, stage, recompute)
                    yield resolve_defaults(plan, training.framework, layers)


def _plan(tp: int, pp: int, dp: int, stage: int, recompute: str) -> StatedPlan:
    degrees = {"tp": tp, "pp": pp, "cp": 1, "dp": dp, **sharding(stage, dp)}
    return StatedPlan.model_validate({**degrees, "micro_batch_size": 1, "recompute": recompute})


def _is_allowed(workload: Workload, plan: Plan) -> bool:
    constraints = workload.constraints
    return all(constraints.permits(name, getattr(plan, name)) for name in constraints.fields)


def _fits(workload: Workload, plan: Plan) -> bool:
    try:
        return workload.predict([plan])[0].fits
    except InputError:
        return False


PROGRAM_FIELDS = tuple(name for name in SEARCHED_FIELDS if name not in ("dp", "dp_shard", "micro_batch_size"))
"""These decide which program runs: plans that share them differ in sizes only, and hang or fail alike."""
SAME_PROGRAM = ("hang", "communication_timeout", "numerics", "bad_configuration")
OUT_OF_MEMORY = "out_of_memory"
MEMORY_MARGIN = 0.98
"""Plans must stay below this share of the memory predicted for a plan that ran out."""


class EndedTrial(Protocol):
    @property
    def plan(self) -> Plan: ...
    @property
    def failure(self) -> TrialFailure | None: ...
    @property
    def refusals(self) -> Sequence[Refusal]: ...


def steered(workload: Workload, trials: Sequence[EndedTrial]) -> Workload:
    """The workload without the plans that trials have settled."""
    constraints = replace(
        workload.constraints,
        excluded=(*workload.constraints.excluded, *(_excluded_fields(workload, trial) for trial in trials)),
        max_memory_fraction=min(workload.constraints.max_memory_fraction, *_ceilings(workload, trials), 1.0),
    )
    return replace(workload, constraints=constraints)


def is_settled(plan: Plan, workload: Workload) -> bool:
    """Whether the steered workload leaves this plan out."""
    searched = _as_searched(plan)
    return any(
        all(searched[name] == value for name, value in fields.items())
        for fields in workload.constraints.excluded
    )


def _excluded_fields(workload: Workload, trial: EndedTrial) -> PlanFields:
    """What a plan must share with this one to be left out: all fields, or what makes its program."""
    plan = _as_searched(with_recompute(workload, trial.plan))
    return {name: plan[name] for name in PROGRAM_FIELDS} if _is_the_programs_fault(trial) else plan


def _as_searched(plan: Plan) -> PlanFields:
    """Without a shard group there is no ZeRO: the search knows such plans by one name only."""
    return {**plan.model_dump(), **sharding(plan.sharding_stage, plan.dp_shard)}


def _is_the_programs_fault(trial: EndedTrial) -> bool:
    failed = trial.failure is not None and trial.failure.kind in SAME_PROGRAM
    return failed or any(refusal.entry == "losses" for refusal in trial.refusals)


def _ceilings(workload: Workload, trials: Sequence[EndedTrial]) -> list[float]:
    """Shares of the device's memory beyond which plans ran out of it, as this model predicts them."""
    failed = [trial.plan for trial in trials if trial.failure and trial.failure.kind == OUT_OF_MEMORY]
    predictions = workload.predict(failed) if failed else []
    return [MEMORY_MARGIN * prediction.peak_memory_gib / workload.capacity_gib for prediction in predictions]
