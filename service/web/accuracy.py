"""/accuracy: predicted against measured step times, of published runs and of this installation's trials.

The published runs are those of kb_seed/validation.json, which `make validate` writes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from statistics import median

from fastapi import APIRouter, Request
from fastapi.responses import Response

from service.api.deps import AppDep, Reader
from service.api.state import AppState
from service.auth import Caller
from service.errors import NotFoundError
from service.render.plotly import Figure, PlotlyJson, frame, label, line, log_axis
from service.render.text import seconds
from service.web.rendering import PageRoute, figure_answer, page
from tools.cost import validation
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
