"""/accuracy and /clusters: predicted against measured step times, of published runs, of this installation's
trials and of each cluster's own runs.

The published runs are those of kb_seed/validation.json, which `make validate` writes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from statistics import median
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response

from service.api.deps import AppDep, Reader
from service.api.state import AppState
from service.auth import Caller
from service.errors import NotFoundError
from service.measurements import ClusterState, cluster_names, find_cluster
from service.render.plotly import PALETTE, Figure, PlotlyJson, frame, label, line, log_axis
from service.render.text import seconds, stamp
from service.web.rendering import PageRoute, figure_answer, page
from tools.calibrate.runs import Run
from tools.cost import validation
from tools.cost.constants import definitions
from tools.cost.validation import RunKind, Score, Validation
from tools.kb import Case, Entry

OWN = "trials here"
GROUPS: dict[RunKind, str] = {"dense": "dense", "moe": "mixture of experts", "small": "very small models"}
COLOURS = {
    "dense": "--compute",
    "mixture of experts": "--tp_comm_exposed",
    "very small models": "--edge",
    OWN: "--ink",
    "without its runs": "--tp_comm_exposed",
}
SMALL = {"size": 7, "opacity": 0.6}
LARGE = {"size": 12, "symbol": "diamond", "line": {"color": "--page", "width": 1}}
OFF_RATIO = 1.1
"""Where the dashed lines are."""
STEP = "step_time_s"
ALL, DENSE, EXPERTS = "all", "dense", "mixture of experts"


@dataclass(frozen=True)
class Pair:
    measured_s: float
    predicted_s: float
    group: str
    says: str = ""


@cache
def published() -> Validation | None:
    """Read once per process; None in an installation without the file."""
    return validation.find_validation()


def published_pairs(validation: Validation | None) -> list[Pair]:
    points = validation.points if validation else ()
    return [Pair(point.measured_s, point.predicted_s, GROUPS[point.kind]) for point in points]


@dataclass(frozen=True)
class Section:
    """The scores of one way to leave runs out of the fit."""

    title: str
    grouped_by: str
    scores: Sequence[Score]


def sections_of(validation: Validation | None) -> list[Section]:
    rows = validation.rows if validation else ()
    by_title = groupby(rows, key=lambda row: (row.section, row.grouped_by))
    return [Section(title, grouped_by, list(scores)) for (title, grouped_by), scores in by_title]


@dataclass(frozen=True)
class Trust:
    """How well predictions of published runs did."""

    score: Score
    devices: frozenset[str]
    """On which some of them ran."""


def find_trust(name: str = ALL) -> Trust | None:
    """From the score of these runs; None if they were not validated."""
    validation = published()
    if validation is None:
        return None
    score = next((row for row in validation.rows if row.name == name), None)
    devices = frozenset(row.name for row in validation.rows if row.grouped_by == "device")
    return Trust(score, devices) if score else None


@dataclass(frozen=True)
class MeasuredTrial:
    """A case of the knowledge base that has both figures."""

    id: str
    title: str
    status: str
    pair: Pair

    @property
    def error_ratio(self) -> float:
        return self.pair.predicted_s / self.pair.measured_s - 1


def trials_of(entries: Iterable[Entry]) -> list[MeasuredTrial]:
    """Newest last, as the knowledge base keeps them."""
    return [trial for entry in entries if (trial := _find_trial(entry))]


def _find_trial(entry: Entry) -> MeasuredTrial | None:
    if not isinstance(entry.body, Case):
        return None
    predicted = _number((entry.body.predicted or {}).get(STEP))
    measured = _number((entry.body.measured or {}).get(STEP))
    if predicted is None or measured is None:
        return None
    return MeasuredTrial(entry.id, entry.title, entry.status, Pair(measured, predicted, OWN, entry.title))


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if value > 0 else None


def median_error(trials: Sequence[MeasuredTrial]) -> float | None:
    return median(abs(trial.error_ratio) for trial in trials) if trials else None


def accuracy_figure(pairs: Sequence[Pair]) -> Figure:
    groups = list(dict.fromkeys(pair.group for pair in pairs))
    data = [_points(group, [pair for pair in pairs if pair.group == group]) for group in groups]
    both = [value for pair in pairs for value in (pair.measured_s, pair.predicted_s)]
    low, high = min(both) / 1.5, max(both) * 1.5
    lines = [line([low, high], [low, high], "equal", "solid", "--ink")]
    for factor, name in ((OFF_RATIO, "10% too long"), (1 / OFF_RATIO, "10% too short")):
        lines.append(line([low, high], [low * factor, high * factor], name) | {"showlegend": False})
    layout = frame("measured, s", "predicted, s", 480)
    layout["xaxis"], layout["yaxis"] = log_axis("measured, s", both), log_axis("predicted, s", both)
    return {"data": [*lines, *data], "layout": layout}


def _points(group: str, pairs: Sequence[Pair]) -> PlotlyJson:
    texts = [
        f"{label(pair.says)}{'<br>' if pair.says else ''}measured {seconds(pair.measured_s)}, "
        f"predicted {seconds(pair.predicted_s)} ({pair.predicted_s / pair.measured_s - 1:+.1%})"
        for pair in pairs
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(group),
        "x": [pair.measured_s for pair in pairs],
        "y": [pair.predicted_s for pair in pairs],
        "text": texts,
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "marker": {"color": COLOURS.get(group, "--accent"), **(LARGE if group == OWN else SMALL)},
    }


router = APIRouter(prefix="/accuracy", route_class=PageRoute)


@router.get("")
def show(request: Request, app: AppDep, caller: Reader) -> Response:
    trials, validation = _trials(app, caller), published()
    return page(
        request,
        "accuracy",
        caller,
        sections=sections_of(validation),
        memory=validation.memory if validation else [],
        has_figure=bool(trials or validation),
        trials=trials,
        median=median_error(trials),
        trust=find_trust(),
    )


@router.get("/figure")
def get_figure(request: Request, app: AppDep, caller: Reader) -> Response:
    pairs = [*published_pairs(published()), *(trial.pair for trial in _trials(app, caller))]
    if not pairs:
        raise NotFoundError("measurement for", "a figure")
    return figure_answer(request, accuracy_figure(pairs))


def _trials(app: AppState, caller: Caller) -> list[MeasuredTrial]:
    return trials_of(app.knowledge.get().entries("case", None, caller.knowledge_tenant))


BEFORE, AFTER = "without its runs", "with its other runs"

clusters_router = APIRouter(prefix="/clusters", route_class=PageRoute)
Name = Annotated[str, Path(max_length=200)]


@clusters_router.get("")
def show_clusters(request: Request, app: AppDep, caller: Reader) -> Response:
    with app.database.read() as conn:
        names = cluster_names(conn, caller.tenant)
        states = [find_cluster(conn, caller.tenant, name) for name in names]
    return page(request, "clusters", caller, clusters=[state for state in states if state])


@clusters_router.get("/{name}")
def show_cluster(name: Name, request: Request, app: AppDep, caller: Reader) -> Response:
    state = _get_cluster(app, caller, name)
    learned = state.learned
    memory = learned.calibration.cluster.memory_factor if learned.calibration.cluster else 1.0
    meanings = {definition.name: definition.meaning for definition in definitions()}
    return page(request, "cluster", caller, cluster=state, learned=learned, memory=memory, meanings=meanings)


@clusters_router.get("/{name}/figure")
def get_cluster_figure(name: Name, request: Request, app: AppDep, caller: Reader) -> Response:
    """Predicted against measured, before and after."""
    checked = _get_cluster(app, caller, name).learned.checked
    if not checked:
        raise NotFoundError("measurement of", name)
    before = [Pair(run.measured_s, run.before_s, BEFORE, run.id) for run in checked]
    after = [Pair(run.measured_s, run.after_s, AFTER, run.id) for run in checked]
    return figure_answer(request, accuracy_figure([*before, *after]))


@clusters_router.get("/{name}/probes")
def get_probes(name: Name, request: Request, app: AppDep, caller: Reader) -> Response:
    probes = _get_cluster(app, caller, name).probes
    if not probes:
        raise NotFoundError("probe of", name)
    return figure_answer(request, probes_figure(probes))


def _get_cluster(app: AppState, caller: Caller, name: str) -> ClusterState:
    with app.database.read() as conn:
        state = find_cluster(conn, caller.tenant, name)
    if state is None:
        raise NotFoundError("cluster", name)
    return state


def probes_figure(probes: Sequence[tuple[float, Run]]) -> Figure:
    """Each constant over its value in the first probe: what drifts shows."""
    names = sorted({name for _, run in probes for name in run.measured.constants})
    data = []
    for number, name in enumerate(names):
        own = [(at, run.measured.constants[name]) for at, run in probes if name in run.measured.constants]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": label(name),
                "x": [stamp(at) for at, _ in own],
                "y": [value / own[0][1] for _, value in own],
                "text": [f"{value:.4g}" for _, value in own],
                "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
                "line": {"color": PALETTE[number % len(PALETTE)]},
            }
        )
    return {"data": data, "layout": frame("", "over the first probe", 360, showlegend=True)}
