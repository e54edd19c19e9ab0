"""/what-if: a prediction for a changed cluster or plan next to the one it starts from; the controls' values
are in the URL.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from service.api.deps import AppDep, Reader
from service.api.state import AppState
from service.db.sessions import get_session
from service.errors import ConflictError, NotFoundError
from service.render.bars import figures_of
from service.render.view import Planned, View, read_workload
from service.web.new_session import EXAMPLE
from service.web.rendering import PageRoute, page
from service.web.session_view import NO_REPORT, TODAY, find_baseline, session_view
from tools.cost.calibration import Calibration
from tools.cost.memory import GIB
from tools.errors import InputError
from tools.hardware import Device, get_device
from tools.recommend.optimize import workload_of
from tools.recommend.score import complete
from tools.recommend.words import short
from tools.recommend.workload import Workload
from tools.scenario import RECOMPUTES, Plan, Scenario, parse_scenario

STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
MEMORY_STEPS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0)
CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
MOST_TENSOR = 64
MOST_STAGES = 64
MOST_CONTEXT = 64


@dataclass(frozen=True)
class Control:
    name: str
    label: str
    options: list[tuple[str, str]]
    """Value and text, in order."""
    chosen: str
    start: str
    is_slider: bool = True


def controls_of(scenario: Scenario, given: Mapping[str, str]) -> dict[str, list[Control]]:
    """By heading."""
    found = {
        "Cluster": _cluster(scenario),
        "Training": _training(scenario),
        "Plan": _plan(scenario),
    }
    return {name: [_standing(one, given) for one in controls] for name, controls in found.items()}


def _standing(control: Control, given: Mapping[str, str]) -> Control:
    value = given.get(control.name) or control.start
    known = [option for option, _ in control.options]
    return replace(control, chosen=value if value in known else control.start)


def _cluster(scenario: Scenario) -> list[Control]:
    cluster = scenario.cluster
    device: Device = get_device(cluster.device, cluster.overrides)
    rates = {"intra": device.intra_node_bytes_per_s, "inter": device.inter_node_bytes_per_s}
    labels = {"intra": "Link inside the node", "inter": "Link between nodes"}
    links = [
        Control(name, labels[name], [(f"{f:g}", f"{rate * f / 1e9:,.4g} GB/s") for f in STEPS], "", "1")
        for name, rate in rates.items()
    ]
    memory = [(f"{f:g}", f"{device.memory_bytes * f / GIB:.1f} GiB") for f in MEMORY_STEPS]
    devices = _around(cluster.num_devices, 4)
    return [
        _numbers("num_devices", "Devices", devices, cluster.num_devices),
        *links,
        Control("memory", "Memory a device", memory, "", "1"),
    ]


def _training(scenario: Scenario) -> list[Control]:
    training = scenario.training
    return [
        _numbers(
            "global_batch_size",
            "Global batch",
            _around(training.global_batch_size, 4),
            training.global_batch_size,
        ),
        _numbers("seq_len", "Sequence length", _around(training.seq_len, 4), training.seq_len),
    ]


def _plan(scenario: Scenario) -> list[Control]:
    plan, model = scenario.plan, scenario.model
    if plan is None:
        return []
    devices = scenario.cluster.num_devices * 16
    found = [
        _numbers("tp", "Tensor parallel", _powers(min(MOST_TENSOR, devices)), plan.tp),
        _numbers("pp", "Pipeline stages", _powers(min(MOST_STAGES, model.num_hidden_layers)), plan.pp),
        _numbers("vpp", "Chunks a stage", CHUNKS, plan.vpp),
        _numbers("cp", "Context parallel", _powers(min(MOST_CONTEXT, devices)), plan.cp),
    ]
    if model.is_moe:
        found.append(_numbers("ep", "Expert parallel", _powers(model.num_experts), plan.ep))
    found += [
        _numbers("micro_batch_size", "Micro-batch", _powers(16), plan.micro_batch_size),
        _numbers("zero_stage", "ZeRO stage", range(4), plan.zero_stage),
        _choice("recompute", "Recompute", list(RECOMPUTES), plan.recompute or "none"),
        _choice(
            "sequence_parallel", "Sequence parallel", ["true", "false"], str(plan.sequence_parallel).lower()
        ),
    ]
    return found


def _numbers(name: str, label: str, values: Iterable[int], start: int) -> Control:
    options = [(str(value), f"{value:,}") for value in sorted({*values, start})]
    return Control(name, label, options, "", str(start))


def _choice(name: str, label: str, values: list[str], start: str) -> Control:
    shown = {"true": "yes", "false": "no"}
    return Control(
        name, label, [(value, shown.get(value, value)) for value in values], "", start, is_slider=False
    )


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _around(value: int, steps: int) -> list[int]:
    """The value halved and doubled so often, where it can be halved."""
    halves = [value // 2**step for step in range(1, steps + 1) if value % 2**step == 0]
    return sorted([*halves, value, *(value * 2**step for step in range(1, steps + 1))])


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


def _predicted(workload: Workload, scenario: Scenario) -> dict[str, Any]:
    return workload.predict([_plan_what_if(scenario)])[0].model_dump()


def ask(scenario: Scenario, given: Given, learned: Calibration | None = None) -> Answer:
    """`scenario` has the plan to start from; what is given replaces parts of it."""
    start = workload_of(scenario, learned)
    planned = [Planned("now", short(_plan_what_if(scenario)), _predicted(start, scenario))]
    limits, refusal = (start.limit_gib, start.capacity_gib), None
    try:
        changed = with_changes(scenario, given)
        workload = workload_of(changed, learned)
        reason = workload.refusal(_plan_what_if(changed))
        if reason is not None:
            field, _, rest = reason.partition(": ")
            raise InputError(field, _given_of(rest), rest.partition("; ")[2] or rest)
        planned.append(Planned("what if", short(_plan_what_if(changed)), _predicted(workload, changed)))
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
    plan = complete(workload_of(changed), _plan_what_if(scenario), _fields(_plan_what_if(scenario), given))
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


def _plan_what_if(scenario: Scenario) -> Plan:
    if scenario.plan is None:
        raise InputError("plan", None, "a plan to start from is needed")
    return scenario.plan


def _given_of(rest: str) -> str:
    return rest.removeprefix("got ").partition("; ")[0]


router = APIRouter(route_class=PageRoute)

SessionId = Annotated[str | None, Query(alias="session", max_length=64)]
PlanName = Annotated[str | None, Query(alias="plan", max_length=10)]


@router.get("/what-if")
def show(
    request: Request, app: AppDep, caller: Reader, session: SessionId = None, plan: PlanName = None
) -> Response:
    given = dict(request.query_params)
    if session:
        scenario, plans, chosen, learned = _of_session(app, caller.tenant, session, plan)
    else:
        scenario, plans, chosen, learned = parse_scenario(EXAMPLE), {}, "", None
    answer = ask(scenario, given, learned)
    return page(
        request,
        "what_if",
        caller,
        session=session,
        plans=plans,
        chosen=chosen,
        controls=controls_of(scenario, given),
        answer=answer,
        figures=figures_of(answer.view),
    )


def _of_session(
    app: AppState, tenant: str, id: str, wanted: str | None
) -> tuple[Scenario, dict[str, str], str, Calibration | None]:
    """The session's scenario with the chosen plan, all plans by name, which it is, and its cost model."""
    with app.database.read() as conn:
        shown = session_view(get_session(conn, tenant, id))
    if shown.view is None or shown.report is None:
        raise ConflictError(f"session {id} is {shown.row.state}; it has no plans yet", field="state")
    workload = read_workload(shown.row.request or {}, shown.report)
    known: dict[str, Any] = {str(one["rank"]): one["plan"] for one in shown.report["proposals"]}
    baseline = find_baseline(workload, shown.report)
    if baseline:
        known = {TODAY: baseline.model_dump(), **known}
    chosen = wanted or next(iter(known))
    if chosen not in known:
        raise NotFoundError("plan", chosen)
    first = "today's plan" if workload.scenario.plan else "the default plan"
    names = {name: first if name == TODAY else f"proposal {name}" for name in known}
    scenario = workload.with_plan(Plan.model_validate(known[chosen]))
    return scenario, names, chosen, workload.calibration
