"""/what-if: a changed cluster or plan next to where it starts from; the controls' values are in the URL."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated

from fastapi import APIRouter, Query, Response

from service.errors import NotFoundError
from service.render.bars import plan_charts
from service.render.view import TODAY, PlanView, ReportView, get_view, planned_of, title_of
from service.sessions.model import SessionRow
from service.sessions.pages.new import EXAMPLE
from service.sessions.pages.plans import PREFIX, find_plan
from service.sessions.usecases import Sessions
from service.web.errors import PageRoute
from service.web.rendering import ReaderPage
from tools.errors import InputError
from tools.hardware import device_names, get_device
from tools.model.calibration import Calibration
from tools.physics.memory import GIB
from tools.recommend.optimize import workload_of
from tools.recommend.report import Change, PlanFields, changes
from tools.recommend.score import complete
from tools.recommend.workload import Workload
from tools.scenario import SEARCHED_FIELDS, Plan, PlanColumns, PlanFacts, Scenario, check_plan, parse_scenario
from tools.scenario.columns import CHOICES
from tools.scenario.spec import MODEL_AXES, PLAN_ROLES, plan_bounds
from tools.search.constraints import parse_constraints
from tools.search.search import Progress, Search

STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
MEMORY_STEPS = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0)
CHUNKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
MAX_DEGREE = 64
MAX_DIGITS = 9
MAX_VIEWS = 16
TRAINING = ("seq_len", "global_batch_size")
PLAN_FIELDS = tuple(name for name in SEARCHED_FIELDS if name not in ("etp", "dp", "schedule"))
"""What may be changed; the others follow."""
MAY_BE_ZERO = tuple(name for name in PLAN_FIELDS if name not in CHOICES and plan_bounds(name)[0] == 0)

Choices = Mapping[str, str]
"""What the address states, by the names of controls."""

router = APIRouter(route_class=PageRoute)


@router.get("/what-if")
def show(
    page: ReaderPage,
    session: Annotated[str | None, Query(max_length=64)] = None,
    plan: Annotated[str | None, Query(max_length=10)] = None,
    best: bool = False,
) -> Response:
    """With `best` the fastest plan for the changed facts is searched too."""
    names: dict[str, str] = {}
    chosen = plan or ""
    if session:
        row = page.app.get(Sessions).get(page.caller, session)
        view = _view(_SessionVersion(row.id, row.updated_at, row))
        if view.baseline_plan:
            names[TODAY] = "the default plan" if view.baseline_name == "default" else "today's plan"
        names |= {str(p.rank): f"proposal {p.rank}" for p in view.report.proposals}
        chosen = chosen or next(iter(names))
        if chosen.startswith(PREFIX):
            names[chosen] = f"searched plan {chosen.removeprefix(PREFIX)}"
        found = find_plan(page.app, row, view, chosen)
        if found is None:
            raise NotFoundError("plan", chosen)
        workload, start = view.workload, found
    else:
        workload = workload_of(parse_scenario(EXAMPLE))
        chosen, start = "", _plan_of(workload.scenario)
    choices = dict(page.request.query_params)
    answer = ask(workload, start, choices)
    winner = None
    if best and answer.variant:
        winner = page.app.run_search(lambda progress: find_winner(answer, workload.calibration, progress))
    return page(
        "what_if",
        session=session,
        plans=names,
        chosen=chosen,
        controls=controls_of(workload.with_plan(start), choices),
        answer=answer,
        winner=winner,
        best_address=str(page.request.url.include_query_params(best="true").query),
        charts=plan_charts(answer.plans),
    )


@dataclass(frozen=True)
class _SessionVersion:
    """Equal until the session changes: while a slider moves, its report is parsed once."""

    id: str
    updated_at: float
    row: SessionRow = field(compare=False)


@lru_cache(maxsize=MAX_VIEWS)
def _view(version: _SessionVersion) -> ReportView:
    return get_view(version.row, "it has no plans yet")


@dataclass(frozen=True)
class WhatIf:
    """The plan as it is, and as it would be; or why that cannot be."""

    title: str
    start: PlanView
    variant: PlanView | None
    refusal: InputError | None = None
    changed: Scenario | None = None
    """The facts of the variant."""

    @property
    def plans(self) -> list[PlanView]:
        return [self.start, self.variant] if self.variant else [self.start]

    @property
    def ratio(self) -> float | None:
        """Tokens per second and device of the variant, over those of the start."""
        if self.variant is None:
            return None
        after, before = self.variant.prediction, self.start.prediction
        return after.tokens_per_s_per_device / before.tokens_per_s_per_device


def ask(workload: Workload, plan: Plan, choices: Choices) -> WhatIf:
    """`plan` is what to start from; `choices` replaces parts of it and of the workload."""
    scenario = workload.with_plan(plan)
    start, title = planned_of("now", workload, plan), title_of(scenario)
    try:
        changed = with_changes(scenario, choices)
        variant = _plan_of(changed)
        check_plan(PlanFacts(changed.model, changed.cluster, changed.training, PlanColumns.of([variant])))
        # Without the limits that only a search needs: to know them takes as long as a prediction.
        constraints = parse_constraints(changed.constraints, changed.plan)
        other = Workload(changed, constraints, workload.calibration)
        return WhatIf(title, start, planned_of("what if", other, variant), changed=changed)
    except InputError as error:
        return WhatIf(title, start, None, error)


@dataclass(frozen=True)
class Winner:
    """The fastest plan of all legal ones for the changed facts; None if none fits."""

    planned: PlanView | None
    changes: Sequence[Change] = ()
    """From the plan of the what-if."""


def find_winner(answer: WhatIf, calibration: Calibration | None, progress: Progress | None = None) -> Winner:
    if answer.changed is None or answer.variant is None:
        return Winner(None)
    workload = workload_of(answer.changed, calibration)
    best = Search(workload.scenario, workload.constraints, workload.calibration, kept=1).run(progress).best
    if not len(best.step_time_s):
        return Winner(None)
    plan = best.plans.plan(0)
    return Winner(planned_of("fastest", workload, plan), changes(answer.variant.plan, plan))


def with_changes(scenario: Scenario, choices: Choices) -> Scenario:
    """Raises InputError for what cannot be: a plan that does not divide the devices, text for a number."""
    cluster, training, plan = _with_device(scenario, choices).cluster, scenario.training, _plan_of(scenario)
    devices = _whole("num_devices", choices, cluster.num_devices)
    device = get_device(cluster.device, cluster.overrides)
    precision = choices.get("precision") or training.precision
    if precision not in device.peak_flops:
        raise InputError("precision", precision, f"{device.name} has {', '.join(device.peak_flops)}")
    overrides = dict(cluster.overrides)
    for name, figure, value in (
        ("intra", "intra_node_gbytes_per_s_per_device", device.intra_node_bytes_per_s / 1e9),
        ("inter", "inter_node_gbps_per_device", device.inter_node_bytes_per_s * 8 / 1e9),
        ("memory", "memory_gib", device.memory_bytes / GIB),
    ):
        try:
            factor = float(choices.get(name) or 1.0)
        except ValueError:
            factor = 0.0
        if not 0.01 <= factor <= 100.0:
            raise InputError(name, choices.get(name), "must be a number from 0.01 to 100")
        if factor != 1.0:
            overrides[figure] = value * factor
    sizes = {name: _whole(name, choices, getattr(training, name)) for name in TRAINING}
    topology = cluster.topology if devices == cluster.num_devices else None
    figures = {"num_devices": devices, "overrides": overrides, "topology": topology}
    changed = scenario.model_copy(
        update={
            "cluster": cluster.model_copy(update=figures),
            "training": training.model_copy(update={**sizes, "precision": precision}),
        }
    )
    fields: PlanFields = {}
    for name in PLAN_FIELDS:
        if text := choices.get(name):
            is_text = isinstance(getattr(plan, name), str | None)
            is_flag = name == "sequence_parallel"
            fields[name] = text == "true" if is_flag else text if is_text else _whole(name, choices, 1)
    stated = {name: value for name, value in fields.items() if value != getattr(plan, name)}
    return changed.model_copy(update={"plan": complete(workload_of(changed), plan, stated)})


def _plan_of(scenario: Scenario) -> Plan:
    if scenario.plan is None:
        raise InputError("plan", None, "a plan to start from is needed")
    return scenario.plan


def _with_device(scenario: Scenario, choices: Choices) -> Scenario:
    """On another device of the catalogue, with its own figures and node size."""
    name = choices.get("device") or scenario.cluster.device
    if name == scenario.cluster.device:
        return scenario
    size = get_device(name, {}).devices_per_node
    update = {"device": name, "devices_per_node": size, "overrides": {}, "topology": None}
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update=update)})


def _whole(name: str, choices: Choices, default: int) -> int:
    text = choices.get(name)
    if not text:
        return default
    low = 0 if name in MAY_BE_ZERO else 1
    if not text.isdecimal() or len(text) > MAX_DIGITS or int(text) < low:
        raise InputError(name, text, f"must be a whole number from {low} to {10**MAX_DIGITS - 1:,}")
    return int(text)


@dataclass(frozen=True)
class Control:
    name: str
    label: str
    options: list[tuple[str, str]]
    """Value and text, in order."""
    start: str = "1"
    chosen: str = ""
    is_slider: bool = True
    reloads: bool = False
    """Whether the other controls depend on it."""


def controls_of(scenario: Scenario, choices: Choices) -> dict[str, list[Control]]:
    """By heading, each with the value that the address states."""
    names, start = device_names(), scenario.cluster.device
    chosen = _with_device(scenario, choices) if choices.get("device") in names else scenario
    cluster, training = chosen.cluster, chosen.training
    device = get_device(cluster.device, cluster.overrides)
    inside, between = device.intra_node_bytes_per_s / 1e9, device.inter_node_bytes_per_s / 1e9
    memory = [(f"{f:g}", f"{device.memory_bytes * f / GIB:.1f} GiB") for f in MEMORY_STEPS]
    precisions = [*dict.fromkeys([training.precision, *device.peak_flops])]
    groups = {
        "Cluster": [
            Control(
                "device", "Device", [*zip(names, names, strict=True)], start, is_slider=False, reloads=True
            ),
            _around("num_devices", "Devices", cluster.num_devices),
            Control("intra", "Link inside the node", [(f"{f:g}", f"{inside * f:,.4g} GB/s") for f in STEPS]),
            Control("inter", "Link between nodes", [(f"{f:g}", f"{between * f:,.4g} GB/s") for f in STEPS]),
            Control("memory", "Memory per device", memory),
        ],
        "Training": [
            _choice("precision", "Precision", precisions, training.precision),
            _around("global_batch_size", "Global batch", training.global_batch_size),
            _around("seq_len", "Sequence length", training.seq_len),
        ],
        "Plan": _plan_controls(scenario, scenario.plan) if scenario.plan else [],
    }

    def with_choice(control: Control) -> Control:
        value = choices.get(control.name)
        is_option = any(value == option for option, _ in control.options)
        return replace(control, chosen=value if value and is_option else control.start)

    return {name: [with_choice(control) for control in group] for name, group in groups.items()}


def _plan_controls(scenario: Scenario, plan: Plan) -> list[Control]:
    def powers(limit: int) -> list[int]:
        return [2**power for power in range(limit.bit_length())]

    model, devices = scenario.model, scenario.cluster.num_devices * 16
    values: dict[str, Sequence[int]] = {
        **{name: powers(min(MAX_DEGREE, devices)) for name in MODEL_AXES},
        "pp": powers(min(MAX_DEGREE, model.num_hidden_layers)),
        "vpp": CHUNKS,
        "ep": powers(model.num_experts) if model.is_moe else (),
        "micro_batch_size": powers(16),
    }
    controls = []
    for name in PLAN_FIELDS:
        label, value = PLAN_ROLES[name].label, getattr(plan, name)
        if name in CHOICES:
            options = [str(choice).lower() for choice in CHOICES[name]]
            start = options[0] if value is None else str(value).lower()
            controls.append(_choice(name, label, options, start))
            continue
        low, high = plan_bounds(name)
        every = range(low, high + 1) if high <= MAX_DEGREE else ()  # no more than a slider can show
        if numbers := values.get(name, every):
            controls.append(_numbers(name, label, numbers, value))
    return controls


def _numbers(name: str, label: str, values: Iterable[int], start: int) -> Control:
    options = [(str(value), f"{value:,}") for value in sorted({*values, start})]
    return Control(name, label, options, str(start))


def _choice(name: str, label: str, values: list[str], start: str) -> Control:
    words = {"true": "yes", "false": "no"}
    return Control(
        name, label, [(value, words.get(value, value)) for value in values], start, is_slider=False
    )


def _around(name: str, label: str, start: int) -> Control:
    """The value halved and doubled up to four times, halved only as long as it is even."""
    factors = [2**step for step in range(1, 5)]
    halves = [start // factor for factor in factors if start % factor == 0]
    return _numbers(name, label, [*halves, *(start * factor for factor in factors)], start)
