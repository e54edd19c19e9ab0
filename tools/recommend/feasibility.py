"""What would help a workload for which no plan fits: the smallest plan, and changes that make one fit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from pydantic import JsonValue

from tools.hardware import device_names, get_device
from tools.recommend.workload import PredictedPlan, Workload, limit_to_expressible
from tools.scenario import Plan, Scenario
from tools.scenario.spec import LoraSpec
from tools.search.constraints import Constraints, parse_constraints
from tools.search.search import Progress, Search, SearchOutcome
from tools.search.space import get_plan

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
        if _fits(_changed(workload, {"num_devices": devices}, {"global_batch_size": batch}), progress):
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
        if _holds(_changed(workload, cluster, {}), smallest):
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
    if not _holds(_changed(workload, {}, {"optimizer_offload": True}), smallest):
        return None
    changes: dict[str, JsonValue] = {"training.optimizer_offload": True}
    return Remedy(
        "offload", "optimizer state and step on the host would make room; each step is longer", changes
    )


def shorter_sequence(workload: Workload, smallest: Plan) -> Remedy | None:
    half = workload.scenario.training.seq_len // 2
    if not half or not _holds(_changed(workload, {}, {"seq_len": half}), smallest):
        return None
    changes: dict[str, JsonValue] = {"training.seq_len": half}
    return Remedy("sequence", f"sequences of {half:,} tokens would fit", changes, keeps_training=False)


def adapters(workload: Workload, smallest: Plan) -> Remedy | None:
    if workload.scenario.training.lora or not _holds(
        _changed(workload, {}, {"lora": LoraSpec(rank=LORA_RANK)}), smallest
    ):
        return None
    changes: dict[str, JsonValue] = {"training.lora": {"rank": LORA_RANK}}
    says = f"adapters of rank {LORA_RANK} on frozen weights (LoRA) would fit"
    return Remedy("lora", says, changes, keeps_training=False)


def _changed(workload: Workload, cluster: Mapping[str, object], training: Mapping[str, object]) -> Workload:
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
