"""The plan that a trial's gain is measured against: today's, or what the framework would do unasked."""

from collections.abc import Iterator

from tools.errors import InfeasibleError, InputError
from tools.recommend.workload import Workload
from tools.scenario import RECOMPUTES, Plan, get_framework, resolve_defaults
from tools.scenario.defaults import StatedPlan
from tools.sharding.space import divisors


def with_recompute(workload: Workload, plan: Plan) -> Plan:
    """The plan with its recomputation stated: none where that fits, else selective, else full."""
    if plan.recompute is not None:
        return plan
    stated = [plan.model_copy(update={"recompute": name}) for name in RECOMPUTES]
    return next((one for one in stated if _fits(workload, one)), stated[-1])


def default_plan(workload: Workload) -> Plan:
    """Data parallel over all devices with the framework's own sharding; split further only where that is
    refused or does not fit. Raises InfeasibleError where no such plan is legal and fits."""
    for plan in _candidates(workload):
        if workload.refusal(plan) is None and _is_allowed(workload, plan) and _fits(workload, plan):
            return plan
    raise InfeasibleError("no plan that the framework would take by default is legal and fits: give a plan")


def _candidates(workload: Workload) -> Iterator[Plan]:
    """Fewest model-parallel ranks first, tensor ranks before stages, the least recomputation first."""
    devices, training = workload.scenario.cluster.num_devices, workload.scenario.training
    layers = workload.scenario.model.num_hidden_layers
    usual = get_framework(training.framework).zero_stage
    stages = sorted(range(4), key=lambda stage: (stage != usual, -stage))
    for ranks in divisors(devices):
        for tp in sorted(divisors(ranks), reverse=True):
            for recompute in RECOMPUTES:
                for stage in stages:
                    plan = _plan(tp, ranks // tp, devices // ranks, stage, recompute)
                    yield resolve_defaults(plan, training.framework, layers)


def _plan(tp: int, pp: int, dp: int, stage: int, recompute: str) -> StatedPlan:
    shard = dp if stage else 1
    degrees = {"tp": tp, "pp": pp, "cp": 1, "ep": 1, "dp": dp, "dp_shard": shard, "zero_stage": stage}
    return StatedPlan.model_validate({**degrees, "micro_batch_size": 1, "recompute": recompute})


def _is_allowed(workload: Workload, plan: Plan) -> bool:
    constraints = workload.constraints
    return all(constraints.permits(name, getattr(plan, name)) for name in constraints.fields)


def _fits(workload: Workload, plan: Plan) -> bool:
    try:
        return bool(workload.predict([plan])[0]["fits"])
    except InputError:
        return False
