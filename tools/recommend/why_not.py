"""Why a plan is not proposed (rule, memory, slower term), and what would help if no plan fits."""

from tools.cost.predict import Prediction
from tools.errors import InfeasibleError
from tools.recommend.feasibility import (
    LARGEST_CLUSTER,
    constrained_fields,
    more_devices,
    smallest_plan,
    without_constraints,
)
from tools.recommend.report import Binding, PlanFields, RejectedPlan, changes
from tools.recommend.words import difference, short
from tools.recommend.workload import Workload
from tools.scenario import RECOMPUTES, Plan
from tools.scenario.spec import FULL_SHARDING, sharding
from tools.search.constraints import parse_constraints
from tools.search.search import Progress, count_changes
from tools.search.space import table_of

MAX_REJECTED = 6
_SCALED = ("tp", "pp", "cp", "ep", "micro_batch_size", "vpp")
"""Fields of a plan whose half and double are neighbours."""


def rejected(workload: Workload, winner: Plan, best: Prediction) -> list[RejectedPlan]:
    """The winner's neighbours, those that would be faster first: an engineer's first questions."""
    legal = [plan for plan in _neighbours(workload, winner) if workload.objection(plan) is None]
    judged = [
        explain(workload, plan, winner, best, p)
        for plan, p in zip(legal, workload.predict(legal), strict=True)
    ]
    judged.sort(key=lambda plan: plan.step_time_ratio or 0.0)
    return judged[:MAX_REJECTED]


def explain(
    workload: Workload, plan: Plan, winner: Plan, best: Prediction, prediction: Prediction
) -> RejectedPlan:
    """The binding constraint of a legal plan, with its margin."""
    ratio = prediction.step_time_s / best.step_time_s
    lacking = prediction.peak_memory_gib - workload.limit_gib
    step = ", ".join(f"{c.field} {c.from_} to {c.to}" for c in changes(winner, plan)) or "the same plan"
    pace = f"save {1 - ratio:.1%}" if ratio < 1 else f"cost {ratio - 1:.1%} more"
    forbidden = _forbidden(workload, plan)
    binding: Binding
    if plan == winner:
        why, binding = "this is the plan that ASAP proposes first", "none"
    elif forbidden:
        why, binding = f"{step} would {pace} but {forbidden}", "constraint"
    elif lacking > 0:
        needs = f"needs {prediction.peak_memory_gib:.1f} GiB of {workload.limit_gib:.1f} usable"
        why, binding = f"{step} would {pace} but {needs}", "memory"
    elif ratio > 1:
        why, binding = f"{step} would {pace}: {difference(best, prediction)}", "time"
    else:
        why, binding = f"{step} would {pace}, inside the error of a comparison", "preference"
    return RejectedPlan(
        plan=plan,
        summary=short(plan),
        binding=binding,
        why=why,
        step_time_s=prediction.step_time_s,
        step_time_ratio=ratio,
        peak_memory_gib=prediction.peak_memory_gib,
    )


def _forbidden(workload: Workload, plan: Plan) -> str | None:
    """Which of the user's constraints the plan breaks."""
    today, max_changes = workload.scenario.plan, workload.constraints.max_changes
    constraints = workload.constraints
    # What trials have settled is excluded too, and has reasons of its own.
    for avoided in parse_constraints(workload.scenario.constraints, today).excluded:
        if all(getattr(plan, name) == value for name, value in avoided.items()):
            fields = ", ".join(f"{name} {value}" for name, value in avoided.items())
            return f"constraints.avoid leaves out {fields}"
    for name in constraints.fields:
        value = getattr(plan, name)
        if value is not None and not constraints.permits(name, value):
            text = constraints.describe(name)
            is_limit = name in constraints.limits
            return (
                f"constraints.{name} says: {text}" if is_limit else f"constraints.{name} allows {text} only"
            )
    if today is None or max_changes is None:
        return None
    made = int(count_changes(today, table_of([plan]))[0])
    return (
        f"it changes {made} fields and constraints.max_changes is {max_changes}"
        if made > max_changes
        else None
    )


def explain_plan(workload: Workload, plan: Plan, winner: Plan) -> RejectedPlan:
    """Any plan that the user asks about; for an illegal one, the framework's reason."""
    reason = workload.objection(plan)
    if reason is not None:
        return RejectedPlan(plan=plan, summary=short(plan), binding="rule", why=reason)
    best, prediction = workload.predict([winner, plan])
    return explain(workload, plan, winner, best, prediction)


def _neighbours(workload: Workload, plan: Plan) -> list[Plan]:
    """Plans one step away, data parallelism taking up the difference."""
    updates: list[PlanFields] = [
        {name: getattr(plan, name) * up // down}
        for name in _SCALED
        for up, down in ((1, 2), (2, 1))
        if getattr(plan, name) * up % down == 0
    ]
    stages = [stage for stage in (1, FULL_SHARDING) if stage != plan.sharding_stage and plan.data_ranks > 1]
    updates += [{**sharding(stage, plan.data_ranks)} for stage in stages]
    updates += [{"recompute": name} for name in RECOMPUTES if name != plan.recompute]
    neighbours = (find_changed(workload, plan, update) for update in updates)
    return list(dict.fromkeys(neighbour for neighbour in neighbours if neighbour is not None))


def find_changed(workload: Workload, plan: Plan, update: PlanFields) -> Plan | None:
    """The plan with some fields replaced, if that divides the devices; what depends on them follows."""
    values = {**plan.model_dump(), **update}
    devices = workload.scenario.cluster.num_devices
    other = values["tp"] * values["pp"] * values["cp"]
    if devices % other:
        return None
    if "dp" not in update:
        values["dp"] = devices // other
    if "sequence_parallel" not in update:
        allowed = workload.constraints.permits("sequence_parallel", True)
        wanted = plan.sequence_parallel or ("tp" in update and allowed)
        values["sequence_parallel"] = wanted and values["tp"] > 1
    if "vpp" not in update and values["pp"] == 1:
        values["vpp"] = 1
    if "schedule" not in update and plan.schedule in ("1f1b", "interleaved"):
        values["schedule"] = "interleaved" if values["vpp"] > 1 else "1f1b"
    try:
        changed = Plan.model_validate(values)
    except ValueError:  # beyond the bounds of a field
        return None
    return changed if "dp_shard" in update else changed.sharded_like(plan)


def infeasible(workload: Workload, progress: Progress | None = None) -> InfeasibleError:
    smallest = smallest_plan(workload, progress)
    if smallest is None:
        return InfeasibleError(_nothing_legal(workload))
    start = (
        f"no legal plan fits: the smallest ({short(smallest.plan)}) needs "
        f"{smallest.prediction.peak_memory_gib:.1f} GiB of {workload.limit_gib:.1f} usable per device"
    )
    freed = without_constraints(workload, progress)
    if freed:
        return InfeasibleError(f"{start}; {freed.says}")
    more = more_devices(workload, progress)
    devices = more.says if more else f"not even {LARGEST_CLUSTER} devices would suffice"
    adam = "8-bit optimizer state would save 6 of the 12 bytes that Adam keeps for each parameter"
    return InfeasibleError("; ".join([start, devices, adam]))


def _nothing_legal(workload: Workload) -> str:
    t, c = workload.scenario.training, workload.scenario.cluster
    constrained = ", ".join(f"{name} {text}" for name, text in constrained_fields(workload).items())
    return (
        f"no plan is legal: {t.framework} accepts none for {c.num_devices} devices, a global batch of "
        f"{t.global_batch_size} and the constraints {constrained or 'none'}"
    )
