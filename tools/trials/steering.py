"""Which plan comes first, and which plans earlier trials rule out for the next proposal."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from tools.errors import InfeasibleError, InputError
from tools.recommend.workload import Workload, as_searched
from tools.scenario import RECOMPUTES, SEARCHED_FIELDS, Plan, StatedPlan, get_framework, resolve_defaults
from tools.scenario.spec import AXES, sharding
from tools.search.space import divisors
from tools.trials.order import EndedTrial

PROGRAM_FIELDS = tuple(name for name in SEARCHED_FIELDS if name not in ("dp", "dp_shard", "micro_batch_size"))
"""These decide which program runs: plans that share them differ in sizes only, and hang or fail alike."""
SAME_PROGRAM = ("hang", "communication_timeout", "numerics", "bad_configuration")
OUT_OF_MEMORY = "out_of_memory"
MEMORY_MARGIN = 0.98
"""Plans must stay below this share of the memory predicted for a plan that ran out."""


def with_recompute(workload: Workload, plan: Plan) -> Plan:
    """The plan with its recomputation stated: none if that fits, else selective, else full."""
    if plan.recompute is not None:
        return plan
    stated = [plan.model_copy(update={"recompute": name}) for name in RECOMPUTES]
    return next((option for option in stated if _fits(workload, option)), stated[-1])


def default_plan(workload: Workload) -> Plan:
    """Data parallel over all devices with the framework's own sharding; split further only if that is
    refused or does not fit. Raises InfeasibleError if no such plan is legal and fits."""
    constraints = workload.constraints
    for plan in _usual_plans(workload):
        is_allowed = all(constraints.permits(name, getattr(plan, name)) for name in constraints.fields)
        if is_allowed and workload.refusal(plan) is None and _fits(workload, plan):
            return plan
    raise InfeasibleError("no plan that the framework would take by default is legal and fits: give a plan")


def _usual_plans(workload: Workload) -> Iterator[Plan]:
    """Fewest model-parallel ranks first, tensor ranks before stages, the least recomputation first."""
    devices, framework = workload.scenario.cluster.num_devices, workload.scenario.training.framework
    layers = workload.scenario.model.num_hidden_layers
    usual = get_framework(framework).sharding_stage
    for ranks in divisors(devices):
        for tp in sorted(divisors(ranks), reverse=True):
            for recompute in RECOMPUTES:
                for stage in sorted(range(4), key=lambda stage: (stage != usual, -stage)):
                    dp = devices // ranks
                    degrees = (
                        dict.fromkeys(AXES, 1) | {"tp": tp, "pp": ranks // tp, "dp": dp} | sharding(stage, dp)
                    )
                    stated = {**degrees, "micro_batch_size": 1, "recompute": recompute}
                    yield resolve_defaults(StatedPlan.model_validate(stated), framework, layers)


def _fits(workload: Workload, plan: Plan) -> bool:
    try:
        return workload.predict([plan])[0].fits
    except InputError:
        return False


def steered(workload: Workload, trials: Sequence[EndedTrial]) -> Workload:
    """The workload without the plans that trials have settled."""
    excluded = []
    for trial in trials:
        # What a plan must share with this one to be left out: all fields, or what makes its program.
        plan = as_searched(with_recompute(workload, trial.plan))
        failed = trial.failure is not None and trial.failure.kind in SAME_PROGRAM
        same_program = failed or any(refusal.entry == "losses" for refusal in trial.refusals)
        excluded.append({name: plan[name] for name in PROGRAM_FIELDS} if same_program else plan)
    full = [trial.plan for trial in trials if trial.failure and trial.failure.kind == OUT_OF_MEMORY]
    # Shares of the device's memory beyond which plans ran out of it, as this model predicts them.
    ceilings = [
        MEMORY_MARGIN * prediction.peak_memory_gib / workload.capacity_gib
        for prediction in (workload.predict(full) if full else [])
    ]
    constraints = replace(
        workload.constraints,
        excluded=(*workload.constraints.excluded, *excluded),
        max_memory_fraction=min(workload.constraints.max_memory_fraction, *ceilings, 1.0),
    )
    return replace(workload, constraints=constraints)
