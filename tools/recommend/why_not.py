"""Why a plan is not proposed (rule, memory, slower term); and if no plan fits: the smallest plan, and changes
with which one would fit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from pydantic import JsonValue

from tools.cost.predict import Prediction
from tools.errors import InfeasibleError
from tools.hardware import device_names, get_device
from tools.recommend.report import Binding, PlanFields, RejectedPlan, changes
from tools.recommend.words import difference, short
from tools.recommend.workload import PredictedPlan, Workload, limit_to_expressible
from tools.scenario import RECOMPUTES, Plan, Scenario
from tools.scenario.spec import FULL_SHARDING, LoraSpec, sharding
from tools.search.constraints import Constraints, parse_constraints
from tools.search.search import Progress, Search, SearchOutcome, count_changes
from tools.search.space import get_plan, table_of

UNLIMITED = 1e9
LARGEST_CLUSTER = 65536
LORA_RANK = 16


@dataclass(frozen=True)
class Remedy:
    """A change with which some plan fits."""

    name: str
    says: str
    changes: Mapping[str, JsonValue]
    """Fields of the request by their path, None for one to leave out."""
    keeps_training: bool = True
    """Whether the same model is trained in the same way."""

    def apply(self, request: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        changed = dict(request)
        for path, value in self.changes.items():
            part, _, field = path.partition(".")
            if not field:
                changed[part] = value
                continue
            own = changed.get(part)
            changed[part] = {**(own if isinstance(own, dict) else {}), field: value}
        return {name: value for name, value in changed.items() if value is not None}


def smallest_plan(workload: Workload, progress: Progress | None = None) -> PredictedPlan | None:
    """The legal plan that needs the least memory; None if none is legal."""
    result = _search(workload, UNLIMITED, progress)
    if not len(result.best.step_time_s):
        return None
    # The front has every recomputation; the best, where memory is no limit, only none.
    plan = get_plan(result.front.plans, int(np.argmin(result.front.memory_bytes)))
    return PredictedPlan(plan, workload.predict([plan])[0])


def remedies(workload: Workload, smallest: Plan) -> list[Remedy]:
    """Confirmed by a search, or by the smallest plan; those that leave the training alone first."""
    found = [
        without_constraints(workload),
        more_devices(workload),
        larger_device(workload, smallest),
        offloaded_optimizer(workload, smallest),
        shorter_sequence(workload, smallest),
        adapters(workload, smallest),
    ]
    return [remedy for remedy in found if remedy]


def constrained_fields(workload: Workload) -> dict[str, str]:
    """What the user forbade, but for memory."""
    own = parse_constraints(workload.scenario.constraints, workload.scenario.plan)
    changes = {} if own.max_changes is None else {"max_changes": str(own.max_changes)}
    return {name: own.describe(name) for name in own.fields} | changes


def without_constraints(workload: Workload, progress: Progress | None = None) -> Remedy | None:
    names = constrained_fields(workload)
    bare = Constraints(max_memory_fraction=workload.constraints.max_memory_fraction)
    freed = replace(workload, constraints=limit_to_expressible(workload.scenario, bare))
    if not names or not _fits(freed, progress):
        return None
    return Remedy(
        "constraints", f"without the constraints on {', '.join(names)} plans fit", {"constraints": None}
    )


def more_devices(workload: Workload, progress: Progress | None = None) -> Remedy | None:
    s = workload.scenario
    devices = s.cluster.num_devices
    while devices * 2 <= LARGEST_CLUSTER:
        devices *= 2
        batch = s.training.global_batch_size * devices // s.cluster.num_devices
        if _fits(_with_changes(workload, {"num_devices": devices}, {"global_batch_size": batch}), progress):
            changes: dict[str, JsonValue] = {
                "cluster.num_devices": devices, "training.global_batch_size": batch, "plan": None,
            }  # fmt: skip
            if s.cluster.topology:
                changes["cluster.topology"] = None
            return Remedy("devices", f"{devices} devices (with the batch grown alike) would suffice", changes)
    return None


def larger_device(workload: Workload, smallest: Plan) -> Remedy | None:
    """The device with the least memory above this one's with which a plan fits."""
    for name in _larger_devices(workload):
        device = get_device(name, {})
        cluster: dict[str, JsonValue] = {
            "device": name, "devices_per_node": device.devices_per_node, "overrides": {}, "topology": None,
        }  # fmt: skip
        if _holds(_with_changes(workload, cluster, {}), smallest):
            changes: dict[str, JsonValue] = {
                "cluster": {"device": name, "num_devices": workload.scenario.cluster.num_devices}
            }
            return Remedy("device", f"the same number of {name} would suffice", changes)
    return None


def _larger_devices(workload: Workload) -> Iterator[str]:
    s, own = workload.scenario, workload.device
    known = [get_device(name, {}) for name in device_names()]
    larger = [
        device
        for device in known
        if device.memory_bytes > own.memory_bytes
        and device.vendor == own.vendor
        and s.training.precision in device.peak_flops
    ]
    yield from (device.name for device in sorted(larger, key=lambda device: device.memory_bytes))


def offloaded_optimizer(workload: Workload, smallest: Plan) -> Remedy | None:
    if not _holds(_with_changes(workload, {}, {"optimizer_offload": True}), smallest):
        return None
    changes: dict[str, JsonValue] = {"training.optimizer_offload": True}
    return Remedy(
        "offload", "optimizer state and step on the host would make room; each step is longer", changes
    )


def shorter_sequence(workload: Workload, smallest: Plan) -> Remedy | None:
    half = workload.scenario.training.seq_len // 2
    if not half or not _holds(_with_changes(workload, {}, {"seq_len": half}), smallest):
        return None
    changes: dict[str, JsonValue] = {"training.seq_len": half}
    return Remedy("sequence", f"sequences of {half:,} tokens would fit", changes, keeps_training=False)


def adapters(workload: Workload, smallest: Plan) -> Remedy | None:
    if workload.scenario.training.lora or not _holds(
        _with_changes(workload, {}, {"lora": LoraSpec(rank=LORA_RANK)}), smallest
    ):
        return None
    changes: dict[str, JsonValue] = {"training.lora": {"rank": LORA_RANK}}
    says = f"adapters of rank {LORA_RANK} on frozen weights (LoRA) would fit"
    return Remedy("lora", says, changes, keeps_training=False)


def _with_changes(
    workload: Workload, cluster: Mapping[str, object], training: Mapping[str, object]
) -> Workload:
    s = workload.scenario
    update = {
        "cluster": s.cluster.model_copy(update=dict(cluster)),
        "training": s.training.model_copy(update=dict(training)),
    }
    scenario: Scenario = s.model_copy(update=update)
    return replace(workload, scenario=scenario)


def _holds(workload: Workload, plan: Plan) -> bool:
    """Whether the plan is legal and fits."""
    if workload.refusal(plan):
        return False
    return workload.predict([plan])[0].peak_memory_gib <= workload.limit_gib


def _fits(workload: Workload, progress: Progress | None) -> bool:
    return len(_search(workload, workload.constraints.max_memory_fraction, progress).best.step_time_s) > 0


def _search(workload: Workload, fraction: float, progress: Progress | None) -> SearchOutcome:
    constraints = replace(workload.constraints, max_memory_fraction=fraction)
    return Search(workload.scenario, constraints, workload.calibration, kept=1).run(progress)


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
