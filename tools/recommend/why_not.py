"""Why a plan is not proposed (rule, memory, slower term); if none fits, the smallest and the remedies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from pydantic import JsonValue

from tools.errors import InfeasibleError
from tools.hardware import device_names, get_device
from tools.model.predict import Prediction
from tools.recommend.measured import citations
from tools.recommend.report import Binding, PlanFields, RejectedPlan, changes
from tools.recommend.words import difference, in_words, short
from tools.recommend.workload import PredictedPlan, Workload, limit_to_expressible
from tools.scenario import RECOMPUTES, Plan, PlanColumns
from tools.scenario.spec import CARRIED_FIELDS, FULL_SHARDING, MODEL_AXES, PLAN_ROLES, LoraSpec, sharding
from tools.search.constraints import Constraints, parse_constraints
from tools.search.ranked import Ranked
from tools.search.search import Progress, Search, SearchOutcome, count_changes

UNLIMITED = 1e9
LARGEST_CLUSTER = 65536
LORA_RANK = 16
MAX_REJECTED, MAX_CRASHED = 6, 2
SCALED = (*MODEL_AXES, "ep", "micro_batch_size", "vpp")
"""Fields of a plan whose half and double are neighbours."""


@dataclass(frozen=True)
class Remedy:
    """A change with which some plan fits."""

    name: str
    summary: str
    changes: Mapping[str, JsonValue]
    """Fields of the request by their path, None for one to leave out."""
    keeps_training: bool = True
    """Whether the same model is trained in the same way."""

    def apply(self, request: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        changed = dict(request)
        for path, value in self.changes.items():
            part, _, field = path.partition(".")
            own = changed.get(part)
            changed[part] = {**(own if isinstance(own, dict) else {}), field: value} if field else value
        return {name: value for name, value in changed.items() if value is not None}


def infeasible(workload: Workload, found: Ranked, progress: Progress | None = None) -> InfeasibleError:
    """Why nothing is proposed; `found` are plans that fit, and that the configuration cannot express."""
    if len(found.step_time_s):
        plan = found.plans.plan(int(np.argmin(found.step_time_s)))
        start = f"no plan that fits can be written as {workload.scenario.training.framework}'s configuration"
        refused = f"{short(plan)}: {workload.why_inexpressible(plan)}"
        return InfeasibleError(f"{start}; the fastest is refused ({refused})")
    t, devices = workload.scenario.training, workload.scenario.cluster.num_devices
    smallest = smallest_plan(workload, progress)
    if smallest is None:
        constrained = ", ".join(f"{name} {text}" for name, text in constrained_fields(workload).items())
        return InfeasibleError(
            f"no plan is legal: {t.framework} accepts none for {devices} devices, a global batch of "
            f"{t.global_batch_size} and the constraints {constrained or 'none'}"
        )
    needed = f"{smallest.prediction.peak_memory_gib:.1f} GiB of {workload.limit_gib:.1f} usable per device"
    start = f"no legal plan fits: the smallest ({short(smallest.plan)}) needs {needed}"
    if freed := without_constraints(workload, progress):
        return InfeasibleError(f"{start}; {freed.summary}")
    more = more_devices(workload, progress)
    enough = more.summary if more else f"not even {LARGEST_CLUSTER} devices would suffice"
    adam = "8-bit optimizer state would save 6 of the 12 bytes that Adam keeps for each parameter"
    return InfeasibleError("; ".join([start, enough, adam]))


def smallest_plan(workload: Workload, progress: Progress | None = None) -> PredictedPlan | None:
    """The legal plan that needs the least memory; None if none is legal."""
    result = _search(workload, UNLIMITED, progress)
    if not len(result.best.step_time_s):
        return None
    # The front has every recomputation; the best, where memory is no limit, only none.
    plan = result.front.plans.plan(int(np.argmin(result.front.memory_bytes)))
    return PredictedPlan(plan, workload.predict([plan])[0])


def remedies(workload: Workload, smallest: Plan) -> list[Remedy]:
    """Confirmed by a search, or by the smallest plan; those that leave the training alone first."""
    training = workload.scenario.training
    found = [without_constraints(workload), more_devices(workload), larger_device(workload, smallest)]
    if _holds(_with(workload, "training", optimizer_offload=True), smallest):
        says = "optimizer state and step on the host would make room; each step is longer"
        found.append(Remedy("offload", says, {"training.optimizer_offload": True}))
    half = training.seq_len // 2
    if half and _holds(_with(workload, "training", seq_len=half), smallest):
        says = f"sequences of {half:,} tokens would fit"
        found.append(Remedy("sequence", says, {"training.seq_len": half}, keeps_training=False))
    lora = LoraSpec(rank=LORA_RANK)
    if not training.lora and _holds(_with(workload, "training", lora=lora), smallest):
        says = f"adapters of rank {LORA_RANK} on frozen weights (LoRA) would fit"
        found.append(Remedy("lora", says, {"training.lora": {"rank": LORA_RANK}}, keeps_training=False))
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
    says = f"without the constraints on {', '.join(names)} plans fit"
    return Remedy("constraints", says, {"constraints": None})


def more_devices(workload: Workload, progress: Progress | None = None) -> Remedy | None:
    cluster, batch = workload.scenario.cluster, workload.scenario.training.global_batch_size
    devices = cluster.num_devices
    while devices * 2 <= LARGEST_CLUSTER:
        devices, batch = devices * 2, batch * 2
        grown = _with(workload, "cluster", num_devices=devices)
        if _fits(_with(grown, "training", global_batch_size=batch), progress):
            says = f"{devices} devices (with the batch grown alike) would suffice"
            topology: dict[str, JsonValue] = {"cluster.topology": None} if cluster.topology else {}
            sizes = {"cluster.num_devices": devices, "training.global_batch_size": batch}
            return Remedy("devices", says, {**sizes, "plan": None, **topology})
    return None


def larger_device(workload: Workload, smallest: Plan) -> Remedy | None:
    """The device with the least memory above this one's with which a plan fits."""
    s, own = workload.scenario, workload.device
    larger = [
        device
        for device in (get_device(name, {}) for name in device_names())
        if device.memory_bytes > own.memory_bytes
        and device.vendor == own.vendor
        and s.training.precision in device.peak_flops
    ]
    for device in sorted(larger, key=lambda device: device.memory_bytes):
        node = device.devices_per_node
        other = _with(
            workload, "cluster", device=device.name, devices_per_node=node, overrides={}, topology=None
        )
        if _holds(other, smallest):
            says = f"the same number of {device.name} would suffice"
            cluster: JsonValue = {"device": device.name, "num_devices": s.cluster.num_devices}
            return Remedy("device", says, {"cluster": cluster})
    return None


def _with(workload: Workload, part: str, **update: object) -> Workload:
    """With some fields of a part of the scenario replaced."""
    changed = getattr(workload.scenario, part).model_copy(update=update)
    return replace(workload, scenario=workload.scenario.model_copy(update={part: changed}))


def _holds(workload: Workload, plan: Plan) -> bool:
    if workload.refusal(plan):
        return False
    return workload.predict([plan])[0].peak_memory_gib <= workload.limit_gib


def _fits(workload: Workload, progress: Progress | None) -> bool:
    return len(_search(workload, workload.constraints.max_memory_fraction, progress).best.step_time_s) > 0


def _search(workload: Workload, fraction: float, progress: Progress | None) -> SearchOutcome:
    constraints = replace(workload.constraints, max_memory_fraction=fraction)
    return Search(workload.scenario, constraints, workload.calibration, kept=1).run(progress)


def rejected(workload: Workload, winner: Plan, best: Prediction) -> list[RejectedPlan]:
    """The winner's neighbours, one step away with data parallelism taking up the difference, and the fastest
    of this job's plans that crashed; those that would be faster first: an engineer's first questions."""
    updates: list[PlanFields] = [
        {name: getattr(winner, name) * up // down}
        for name in SCALED
        for up, down in ((1, 2), (2, 1))
        if getattr(winner, name) * up % down == 0
    ]
    ranks = winner.data_ranks
    stages = [stage for stage in (1, FULL_SHARDING) if stage != winner.sharding_stage and ranks > 1]
    updates += [{**sharding(stage, ranks)} for stage in stages]
    updates += [{"recompute": name} for name in RECOMPUTES if name != winner.recompute]
    neighbours = dict.fromkeys(find_changed(workload, winner, update) for update in updates)
    seen = workload.calibration.seen
    ran = [run.scenario.plan for run in seen.of_job(workload.scenario) if run.crashed] if seen else []
    plans = dict.fromkeys(plan for plan in (*ran, *neighbours) if plan is not None)
    legal = [plan for plan in plans if workload.objection(plan) is None]
    predictions = workload.predict(legal)
    judged = [explain(workload, plan, winner, best, p) for plan, p in zip(legal, predictions, strict=True)]
    judged.sort(key=lambda plan: plan.step_time_ratio or 0.0)
    crashed = [plan for plan in judged if plan.binding == "trial"][:MAX_CRASHED]
    others = [plan for plan in judged if plan.binding != "trial"][: MAX_REJECTED - len(crashed)]
    return sorted([*crashed, *others], key=lambda plan: plan.step_time_ratio or 0.0)


def explain_plan(workload: Workload, plan: Plan, winner: Plan) -> RejectedPlan:
    """Any plan that the user asks about; for an illegal one, the framework's reason."""
    reason = workload.objection(plan)
    if reason is not None:
        return RejectedPlan(plan=plan, summary=short(plan), binding="rule", why=reason)
    best, prediction = workload.predict([winner, plan])
    return explain(workload, plan, winner, best, prediction)


def explain(
    workload: Workload, plan: Plan, winner: Plan, best: Prediction, prediction: Prediction
) -> RejectedPlan:
    """The binding constraint of a legal plan, with its margin."""
    ratio = prediction.step_time_s / best.step_time_s
    lacking = prediction.peak_memory_gib - workload.limit_gib
    moved = (f"{c.field} {in_words(c.from_)} to {in_words(c.to)}" for c in changes(winner, plan))
    step = ", ".join(moved) or "the same plan"
    pace = f"save {1 - ratio:.1%}" if ratio < 1 else f"cost {ratio - 1:.1%} more"
    forbidden = _forbidden(workload, plan)
    binding: Binding
    if plan == winner:
        why, binding = "this is the plan that ASAP proposes first", "none"
    elif forbidden:
        why, binding = f"{step} would {pace} but {forbidden}", "constraint"
    elif not prediction.fits and workload.has_crashed(plan):
        why, binding = f"{step} would {pace} but {citations(workload, plan, prediction)[1][0]}", "trial"
    elif lacking > 0:
        needs = f"needs {prediction.peak_memory_gib:.1f} GiB of {workload.limit_gib:.1f} usable"
        why, binding = f"{step} would {pace} but {needs}", "memory"
    elif ratio > 1:
        why, binding = f"{step} would {pace}: {difference(best, prediction)}", "time"
    else:
        more = prediction.peak_memory_gib - best.peak_memory_gib
        but = f" but needs {more:.1f} GiB more" if more > 0 else ""
        why, binding = f"{step} would {pace}{but}, inside the error of a comparison", "preference"
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
    today, constraints = workload.scenario.plan, workload.constraints
    # What trials have settled is excluded too, and has reasons of its own.
    for avoided in parse_constraints(workload.scenario.constraints, today).excluded:
        if all(getattr(plan, name) == value for name, value in avoided.items()):
            fields = ", ".join(f"{name} {value}" for name, value in avoided.items())
            return f"constraints.avoid leaves out {fields}"
    for name in constraints.fields:
        value = getattr(plan, name)
        if value is not None and not constraints.permits(name, value):
            text = constraints.describe(name)
            rule = f"says: {text}" if name in constraints.limits else f"allows {text} only"
            return f"constraints.{name} {rule}"
    if today is None or constraints.max_changes is None:
        return None
    made, most = int(count_changes(today, PlanColumns.of([plan]))[0]), constraints.max_changes
    return f"it changes {made} fields and constraints.max_changes is {most}" if made > most else None


def find_changed(workload: Workload, plan: Plan, update: PlanFields) -> Plan | None:
    """The plan with some fields replaced, if that divides the devices; what depends on them follows."""
    values = {**plan.model_dump(), **update}
    devices = workload.scenario.cluster.num_devices
    other = math.prod(values[name] for name in MODEL_AXES)
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
    for name in CARRIED_FIELDS:  # what decides a detail of another choice goes with that choice
        decided = PLAN_ROLES[name].only_with
        if name not in update and decided and values[decided[0]] != decided[1]:
            values[name] = None
    try:
        changed = Plan.model_validate(values)
    except ValueError:  # beyond the bounds of a field
        return None
    return changed if "dp_shard" in update else changed.sharded_like(plan)
