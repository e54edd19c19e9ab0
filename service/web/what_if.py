"""/what-if: a prediction for a changed cluster or plan next to the one it starts from; the controls' values
are in the URL.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from service.api.deps import AppDep, Reader, run_bounded_search
from service.api.state import AppState
from service.auth import Caller
from service.db.models import SessionRow
from service.errors import NotFoundError
from service.render.bars import plan_charts
from service.render.view import TODAY, Planned, View, get_view, planned_of, title_of
from service.web.new_session import EXAMPLE
from service.web.plans import PREFIX, find_plan
from service.web.rendering import PageRoute, page
from tools.cost.calibration import Calibration
from tools.cost.memory import GIB
from tools.errors import InputError
from tools.hardware import Device, device_names, get_device
from tools.recommend.optimize import workload_of
from tools.recommend.report import Change, PlanFields, changes
from tools.recommend.score import complete
from tools.recommend.workload import Workload
from tools.scenario import SEARCHED_FIELDS, Plan, Scenario, parse_scenario
from tools.scenario.columns import CHOICES
from tools.scenario.spec import PLAN_ROLES, plan_bounds
from tools.search.constraints import parse_constraints
from tools.search.search import Progress, Search
from tools.search.space import get_plan

STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
MEMORY_STEPS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0)
CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
MAX_DEGREE = 64
MAX_DIGITS = 9


@dataclass(frozen=True)
class Control:
    name: str
    label: str
    options: list[tuple[str, str]]
    """Value and text, in order."""
    chosen: str
    start: str
    is_slider: bool = True
    reloads: bool = False
    """Whether the other controls depend on it."""


def controls_of(scenario: Scenario, choices: Mapping[str, str]) -> dict[str, list[Control]]:
    """By heading, each with the value that the address states."""
    is_known = choices.get("device") in device_names()
    chosen = _with_device(scenario, choices) if is_known else scenario
    names, start = [(name, name) for name in device_names()], scenario.cluster.device
    device = Control("device", "Device", names, "", start, is_slider=False, reloads=True)
    groups = {
        "Cluster": [device, *_cluster(chosen)],
        "Training": _training(chosen),
        "Plan": _plan(scenario),
    }
    return {name: [_with_choice(control, choices) for control in group] for name, group in groups.items()}


def _with_choice(control: Control, choices: Mapping[str, str]) -> Control:
    value = choices.get(control.name) or control.start
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
    return [
        _around("num_devices", "Devices", cluster.num_devices),
        *links,
        Control("memory", "Memory per device", memory, "", "1"),
    ]


def _training(scenario: Scenario) -> list[Control]:
    training, cluster = scenario.training, scenario.cluster
    peaks = get_device(cluster.device, cluster.overrides).peak_flops
    return [
        _choice("precision", "Precision", [*dict.fromkeys([training.precision, *peaks])], training.precision),
        _around("global_batch_size", "Global batch", training.global_batch_size),
        _around("seq_len", "Sequence length", training.seq_len),
    ]


def _plan(scenario: Scenario) -> list[Control]:
    plan, model = scenario.plan, scenario.model
    if plan is None:
        return []
    devices = scenario.cluster.num_devices * 16
    values: dict[str, Sequence[int]] = {
        "tp": _powers(min(MAX_DEGREE, devices)),
        "pp": _powers(min(MAX_DEGREE, model.num_hidden_layers)),
        "vpp": CHUNKS,
        "cp": _powers(min(MAX_DEGREE, devices)),
        "ep": _powers(model.num_experts) if model.is_moe else (),
        "micro_batch_size": _powers(16),
    }
    controls = []
    for name in PLAN_FIELDS:
        label, value = PLAN_ROLES[name].label, getattr(plan, name)
        if name in CHOICES:
            options = [str(choice).lower() for choice in CHOICES[name]]
            controls.append(
                _choice(name, label, options, options[0] if value is None else str(value).lower())
            )
        elif numbers := values.get(name, _all_values(name)):
            controls.append(_numbers(name, label, numbers, value))
    return controls


def _all_values(name: str) -> Sequence[int]:
    """All values of a field that has no more than a slider can show."""
    low, high = plan_bounds(name)
    return range(low, high + 1) if high <= MAX_DEGREE else ()


def _numbers(name: str, label: str, values: Iterable[int], start: int) -> Control:
    options = [(str(value), f"{value:,}") for value in sorted({*values, start})]
    return Control(name, label, options, "", str(start))


def _choice(name: str, label: str, values: list[str], start: str) -> Control:
    labels = {"true": "yes", "false": "no"}
    return Control(
        name, label, [(value, labels.get(value, value)) for value in values], "", start, is_slider=False
    )


def _powers(limit: int) -> list[int]:
    return [2**power for power in range(limit.bit_length())]


def _around(name: str, label: str, start: int) -> Control:
    """The value halved and doubled up to four times, halved only as long as it is even."""
    factors = [2**step for step in range(1, 5)]
    halves = [start // factor for factor in factors if start % factor == 0]
    return _numbers(name, label, [*halves, *(start * factor for factor in factors)], start)


FACTORS = ("intra", "inter", "memory")
TRAINING = ("seq_len", "global_batch_size")
PLAN_FIELDS = tuple(name for name in SEARCHED_FIELDS if name not in ("etp", "dp", "schedule"))
"""What may be changed; the others follow."""
MAY_BE_ZERO = tuple(name for name in PLAN_FIELDS if name not in CHOICES and plan_bounds(name)[0] == 0)

Choices = Mapping[str, str]


@dataclass(frozen=True)
class Answer:
    title: str
    start: Planned
    variant: Planned | None
    refusal: InputError | None = None
    changed: Scenario | None = None
    """The facts of the variant."""

    @property
    def plans(self) -> list[Planned]:
        return [self.start, self.variant] if self.variant else [self.start]

    @property
    def ratio(self) -> float | None:
        """Tokens per second and device of the variant, over those of the start."""
        if self.variant is None:
            return None
        after, before = self.variant.prediction, self.start.prediction
        return after.tokens_per_s_per_device / before.tokens_per_s_per_device


def ask(workload: Workload, plan: Plan, choices: Choices) -> Answer:
    """`plan` is what to start from; `choices` replaces parts of it and of the workload."""
    scenario = workload.with_plan(plan)
    start, title = planned_of("now", workload, plan), title_of(scenario)
    try:
        changed = with_changes(scenario, choices)
        other = _unsearched(changed, workload.calibration)
        reason = other.refusal(_plan_of(changed))
        if reason is not None:
            field, _, rest = reason.partition(": ")
            given, _, allowed = rest.partition("; ")
            raise InputError(field, given.removeprefix("got "), allowed or rest)
        return Answer(title, start, planned_of("what if", other, _plan_of(changed)), changed=changed)
    except InputError as error:
        return Answer(title, start, None, error)


@dataclass(frozen=True)
class Winner:
    """The fastest plan of all legal ones for the changed facts; None if none fits."""

    planned: Planned | None
    changes: Sequence[Change] = ()
    """From the plan of the what-if."""


def find_winner(answer: Answer, calibration: Calibration | None, progress: Progress | None = None) -> Winner:
    if answer.changed is None or answer.variant is None:
        return Winner(None)
    workload = workload_of(answer.changed, calibration)
    best = Search(workload.scenario, workload.constraints, workload.calibration, kept=1).run(progress).best
    if not len(best.step_time_s):
        return Winner(None)
    plan = get_plan(best.plans, 0)
    return Winner(planned_of("fastest", workload, plan), changes(answer.variant.plan, plan))


def _unsearched(scenario: Scenario, calibration: Calibration | None) -> Workload:
    """Without the limits that only a search needs: to know them takes as long as a prediction."""
    return Workload.of(scenario, parse_constraints(scenario.constraints, scenario.plan), calibration)


def with_changes(scenario: Scenario, choices: Choices) -> Scenario:
    """Raises InputError for what cannot be: a plan that does not divide the devices, text for a number."""
    cluster = _with_device(scenario, choices).cluster
    devices = _whole("num_devices", choices, cluster.num_devices)
    device = get_device(cluster.device, cluster.overrides)
    figures = _overrides(device, choices)
    topology = cluster.topology if devices == cluster.num_devices else None
    update = {"num_devices": devices, "overrides": {**cluster.overrides, **figures}, "topology": topology}
    training: dict[str, int | str] = {
        name: _whole(name, choices, getattr(scenario.training, name)) for name in TRAINING
    }
    training["precision"] = choices.get("precision") or scenario.training.precision
    if training["precision"] not in device.peak_flops:
        raise InputError(
            "precision", training["precision"], f"{device.name} has {', '.join(device.peak_flops)}"
        )
    changed = scenario.model_copy(
        update={
            "cluster": cluster.model_copy(update=update),
            "training": scenario.training.model_copy(update=training),
        }
    )
    plan = complete(workload_of(changed), _plan_of(scenario), _fields(_plan_of(scenario), choices))
    return changed.model_copy(update={"plan": plan})


def _with_device(scenario: Scenario, choices: Choices) -> Scenario:
    """On another device of the catalogue, with its own figures and node size."""
    name = choices.get("device") or scenario.cluster.device
    if name == scenario.cluster.device:
        return scenario
    update = {
        "device": name,
        "devices_per_node": get_device(name, {}).devices_per_node,
        "overrides": {},
        "topology": None,
    }
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update=update)})


def _overrides(device: Device, choices: Choices) -> dict[str, float]:
    own = {
        "intra": ("intra_node_gbytes_per_s_per_device", device.intra_node_bytes_per_s / 1e9),
        "inter": ("inter_node_gbps_per_device", device.inter_node_bytes_per_s * 8 / 1e9),
        "memory": ("memory_gib", device.memory_bytes / GIB),
    }
    factors = {name: _factor(name, choices) for name in FACTORS}
    return {own[name][0]: own[name][1] * factor for name, factor in factors.items() if factor != 1.0}


def _fields(plan: Plan, choices: Choices) -> PlanFields:
    """What differs from the plan, with the type that the field has there."""
    typed = {
        name: _parse_field(name, choices[name], getattr(plan, name))
        for name in PLAN_FIELDS
        if choices.get(name)
    }
    return {name: value for name, value in typed.items() if value != getattr(plan, name)}


def _parse_field(name: str, text: str, value: object) -> bool | int | str:
    if name == "sequence_parallel":
        return text == "true"
    return text if isinstance(value, str) or value is None else _whole(name, {name: text}, 1)


def _whole(name: str, choices: Choices, default: int) -> int:
    text = choices.get(name)
    if not text:
        return default
    low = 0 if name in MAY_BE_ZERO else 1
    if not text.isdecimal() or len(text) > MAX_DIGITS or int(text) < low:
        raise InputError(name, text, f"must be a whole number from {low} to {10**MAX_DIGITS - 1:,}")
    return int(text)


def _factor(name: str, choices: Choices) -> float:
    try:
        factor = float(choices.get(name) or 1.0)
    except ValueError:
        factor = 0.0
    if not 0.01 <= factor <= 100.0:
        raise InputError(name, choices.get(name), "must be a number from 0.01 to 100")
    return factor


def _plan_of(scenario: Scenario) -> Plan:
    if scenario.plan is None:
        raise InputError("plan", None, "a plan to start from is needed")
    return scenario.plan


router = APIRouter(route_class=PageRoute)

SessionId = Annotated[str | None, Query(alias="session", max_length=64)]
PlanName = Annotated[str | None, Query(alias="plan", max_length=10)]


@router.get("/what-if")
def show(
    request: Request,
    app: AppDep,
    caller: Reader,
    session: SessionId = None,
    plan: PlanName = None,
    best: bool = False,
) -> Response:
    """With `best` the fastest plan for the changed facts is searched too."""
    choices = dict(request.query_params)
    if session:
        workload, plans, chosen, start = _of_session(app, caller, session, plan)
    else:
        workload = workload_of(parse_scenario(EXAMPLE))
        plans, chosen, start = {}, "", _plan_of(workload.scenario)
    answer = ask(workload, start, choices)
    winner = None
    if best and answer.variant:
        winner = run_bounded_search(app, lambda progress: find_winner(answer, workload.calibration, progress))
    return page(
        request,
        "what_if",
        caller,
        session=session,
        plans=plans,
        chosen=chosen,
        controls=controls_of(workload.with_plan(start), choices),
        answer=answer,
        winner=winner,
        best_address=str(request.url.include_query_params(best="true").query),
        charts=plan_charts(answer.plans),
    )


MAX_VIEWS = 16
_views: dict[tuple[str, float], View] = {}
"""Of sessions that people ask about now, by id and time of the last change."""


def _view(row: SessionRow) -> View:
    key = (row.id, row.updated_at)
    view = _views.get(key)
    if view is None:
        view = get_view(row, "it has no plans yet")
        if len(_views) >= MAX_VIEWS:
            _views.clear()
        _views[key] = view
    return view


def _of_session(
    app: AppState, caller: Caller, id: str, key: str | None
) -> tuple[Workload, dict[str, str], str, Plan]:
    """The session's workload, the names of all its plans, the chosen one's, and that plan."""
    row = app.sessions.get(caller, id)
    view = _view(row)
    names = {str(p.rank): f"proposal {p.rank}" for p in view.report.proposals}
    if view.baseline_plan:
        first = "the default plan" if view.baseline_name == "default" else "today's plan"
        names = {TODAY: first, **names}
    chosen = key or next(iter(names))
    if chosen.startswith(PREFIX):
        names[chosen] = f"searched plan {chosen.removeprefix(PREFIX)}"
    plan = find_plan(app, row, view, chosen)
    if plan is None:
        raise NotFoundError("plan", chosen)
    return view.workload, names, chosen, plan
