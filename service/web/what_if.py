"""What if the cluster or the plan were another: one prediction beside the one it starts from.

The cost model answers; here is only which fields of the scenario a question changes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.report.view import Planned, View
from service.web.views.baseline import NO_REPORT
from tools.cost.calibration import Calibration
from tools.cost.memory import GIB
from tools.errors import InputError
from tools.hardware import Device, get_device
from tools.recommend.optimize import workload_of
from tools.recommend.score import complete
from tools.recommend.words import short
from tools.scenario import Plan, Scenario

FACTORS = ("intra", "inter", "memory")
TRAINING = ("seq_len", "global_batch_size")
PLAN_FIELDS = (
    "tp", "pp", "vpp", "cp", "ep", "zero_stage", "dp_shard", "micro_batch_size",
    "sequence_parallel", "recompute",
)  # fmt: skip

Given = Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    view: View
    """The start, and the variant where there is one."""
    refusal: InputError | None = None

    @property
    def start(self) -> Planned:
        return self.view.plans[0]

    @property
    def variant(self) -> Planned | None:
        return self.view.plans[1] if len(self.view.plans) > 1 else None

    @property
    def ratio(self) -> float | None:
        """How many times as many tokens a second on every device."""
        if self.variant is None:
            return None
        name = "tokens_per_s_per_device"
        return float(self.variant.prediction[name] / self.start.prediction[name])


def ask(scenario: Scenario, given: Given, learned: Calibration | None = None) -> Answer:
    """`scenario` has the plan to start from; what is given replaces parts of it."""
    start = workload_of(scenario, learned)
    planned = [Planned("now", short(_plan(scenario)), start.predict([_plan(scenario)])[0])]
    limits, refusal = (start.limit_gib, start.capacity_gib), None
    try:
        changed = with_changes(scenario, given)
        workload = workload_of(changed, learned)
        reason = workload.refusal(_plan(changed))
        if reason is not None:
            field, _, rest = reason.partition(": ")
            raise InputError(field, _given_of(rest), rest.partition("; ")[2] or rest)
        planned.append(Planned("what if", short(_plan(changed)), workload.predict([_plan(changed)])[0]))
        limits = (workload.limit_gib, workload.capacity_gib)
    except InputError as error:
        refusal = error
    title = (
        f"{scenario.model.name or 'Model'} on {scenario.cluster.num_devices:,} x {scenario.cluster.device}"
    )
    return Answer(View(title, "", planned, *limits, NO_REPORT), refusal)


def with_changes(scenario: Scenario, given: Given) -> Scenario:
    """Raises InputError for what cannot be: a plan that does not divide the devices, a text for a number."""
    cluster = scenario.cluster
    devices = _whole("num_devices", given, cluster.num_devices)
    figures = _overrides(get_device(cluster.device, cluster.overrides), given)
    topology = cluster.topology if devices == cluster.num_devices else None
    update = {"num_devices": devices, "overrides": {**cluster.overrides, **figures}, "topology": topology}
    training = {name: _whole(name, given, getattr(scenario.training, name)) for name in TRAINING}
    changed = scenario.model_copy(
        update={
            "cluster": cluster.model_copy(update=update),
            "training": scenario.training.model_copy(update=training),
        }
    )
    plan = complete(workload_of(changed), _plan(scenario), _fields(_plan(scenario), given))
    return changed.model_copy(update={"plan": plan})


def _overrides(device: Device, given: Given) -> dict[str, float]:
    own = {
        "intra": ("intra_node_gbytes_per_s_per_device", device.intra_node_bytes_per_s / 1e9),
        "inter": ("inter_node_gbps_per_device", device.inter_node_bytes_per_s * 8 / 1e9),
        "memory": ("memory_gib", device.memory_bytes / GIB),
    }
    factors = {name: _factor(name, given) for name in FACTORS}
    return {own[name][0]: own[name][1] * factor for name, factor in factors.items() if factor != 1.0}


def _fields(plan: Plan, given: Given) -> dict[str, Any]:
    """What differs from the plan, by the type that the field has there."""
    typed = {name: _typed(name, given[name], getattr(plan, name)) for name in PLAN_FIELDS if given.get(name)}
    return {name: value for name, value in typed.items() if value != getattr(plan, name)}


def _typed(name: str, text: str, known: object) -> object:
    if name == "sequence_parallel":
        return text == "true"
    return text if isinstance(known, str) or known is None else _whole(name, {name: text}, 1)


def _whole(name: str, given: Given, otherwise: int) -> int:
    text = given.get(name)
    if not text:
        return otherwise
    if not text.isdecimal() or not 1 <= len(text) <= 9 or (int(text) == 0 and name != "zero_stage"):
        raise InputError(name, text, "must be a whole number above zero")
    return int(text)


def _factor(name: str, given: Given) -> float:
    try:
        factor = float(given.get(name) or 1.0)
    except ValueError:
        factor = 0.0
    if not 0.01 <= factor <= 100.0:
        raise InputError(name, given.get(name), "must be a number from 0.01 to 100")
    return factor


def _plan(scenario: Scenario) -> Plan:
    if scenario.plan is None:
        raise InputError("plan", None, "a plan to start from is needed")
    return scenario.plan


def _given_of(rest: str) -> str:
    return rest.removeprefix("got ").partition("; ")[0]
