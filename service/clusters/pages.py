"""/accuracy and /clusters: predicted against measured step times, of published runs, of this installation's
trials and of each cluster's own runs.

The published runs are those of kb_seed/validation.json, which `make validate` writes; other cost models on
the same runs are those of kb_seed/benchmark.json (`make bench NAME=plans ARGS=--write`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from statistics import median
from typing import NamedTuple, get_args

from fastapi import APIRouter, Response

from service.clusters.api import ClusterName
from service.clusters.usecases import get_cluster, list_clusters
from service.errors import NotFoundError
from service.http.deps import MAX_ITEMS
from service.render.charts import (
    PALETTE,
    Chart,
    Layer,
    axis,
    boxes,
    chart,
    label,
    line,
    log_axis,
    points,
    rows_axis,
    rows_height,
)
from service.render.text import seconds, stamp
from service.runtime import LazyKnowledge
from service.web.errors import PageRoute
from service.web.rendering import Page, ReaderPage
from tools.kb import Case, Entry
from tools.model import validation
from tools.model.constants import constant_priors
from tools.model.runs import Run
from tools.model.validation import Benchmark, BenchmarkTask, RunKind, Score, Validation, find_benchmark

OWN = "trials here"
GROUPS: dict[RunKind, str] = {"dense": "dense", "moe": "mixture of experts", "small": "very small models"}
COLOURS = {
    "dense": "--compute",
    "mixture of experts": "--tp_comm_exposed",
    "very small models": "--edge",
    OWN: "--ink",
    "without its runs": "--tp_comm_exposed",
}
OFF_RATIO = 1.1
"""Where the dashed lines are."""
STEP = "step_time_s"
ALL, DENSE, EXPERTS = "all", "dense", "mixture of experts"
BEFORE, AFTER = "without its runs", "with its other runs"

router = APIRouter(prefix="/accuracy", route_class=PageRoute)
clusters_router = APIRouter(prefix="/clusters", route_class=PageRoute)


class Pair(NamedTuple):
    measured_s: float
    predicted_s: float
    group: str
    title: str = ""


@cache
def published() -> Validation | None:
    """Read once per process; None in an installation without the file."""
    return validation.find_validation()


def published_pairs(validation: Validation | None) -> list[Pair]:
    points = validation.points if validation else ()
    return [Pair(point.measured_s, point.predicted_s, GROUPS[point.kind]) for point in points]


class Section(NamedTuple):
    """The scores of one way to leave runs out of the fit."""

    title: str
    grouped_by: str
    scores: Sequence[Score]


def sections_of(validation: Validation | None) -> list[Section]:
    rows = validation.rows if validation else ()
    by_title = groupby(rows, key=lambda row: (row.section, row.grouped_by))
    return [Section(title, grouped_by, list(scores)) for (title, grouped_by), scores in by_title]


class Trust(NamedTuple):
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
class TrialCase:
    """A case of the knowledge base that has both figures."""

    id: str
    title: str
    status: str
    pair: Pair

    @property
    def error_ratio(self) -> float:
        return self.pair.predicted_s / self.pair.measured_s - 1


def trials_of(entries: Iterable[Entry]) -> list[TrialCase]:
    """Newest last, as the knowledge base keeps them."""
    trials = []
    for entry in entries:
        if isinstance(entry.body, Case):
            predicted = _number((entry.body.predicted or {}).get(STEP))
            measured = _number((entry.body.measured or {}).get(STEP))
            if predicted and measured:
                pair = Pair(measured, predicted, OWN, entry.title)
                trials.append(TrialCase(entry.id, entry.title, entry.status, pair))
    return trials


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if value > 0 else None


def median_error(trials: Sequence[TrialCase]) -> float | None:
    return median(abs(trial.error_ratio) for trial in trials) if trials else None


def benchmark_chart(benchmark: Benchmark, task: BenchmarkTask) -> Chart:
    """A bar for each cost model, and on it what ASAP errs on the same runs."""
    scores = [score for score in benchmark.scores if score.task == task and score.error is not None]
    names, rows = [label(score.name) for score in scores], list(range(len(scores)))
    errors, own = ([score.error or 0.0 for score in scores], [score.beside or 0.0 for score in scores])
    told = [f"{s.name}: {s.error:.1%} on {s.answered} of {s.runs} runs" for s in scores]
    bars = boxes("error", [0.0] * len(rows), errors, rows, told)
    bars |= {"colour": "--compute", "labels": [f"{error:.1%}" for error in errors]}
    beside = f"{label(benchmark.beside)}, same runs"
    texts = [f"{beside}: {error:.1%}" for error in own]
    marks = points(beside, own, rows, texts, "--tp_comm_exposed", 12) | {"shape": "diamond"}
    x = axis(f"error of {task}", [*errors, *own], "percent", from_zero=True)
    return chart(x, rows_axis(names), rows_height(len(rows)), [bars, marks])


@router.get("")
def show(page: ReaderPage) -> Response:
    trials, validation, benchmark = _trials(page), published(), find_benchmark()
    return page(
        "accuracy",
        sections=sections_of(validation),
        memory=validation.memory if validation else [],
        has_figure=bool(trials or validation),
        trials=trials,
        median=median_error(trials),
        trust=find_trust(),
        benchmark=benchmark,
        tasks=[(task, task) for task in get_args(BenchmarkTask)],
    )


@router.get("/figure")
def get_figure(page: ReaderPage) -> Response:
    pairs = [*published_pairs(published()), *(trial.pair for trial in _trials(page))]
    if not pairs:
        raise NotFoundError("measurement for", "a figure")
    return page.figure(accuracy_chart(pairs))


@router.get("/benchmark")
def get_benchmark(page: ReaderPage, task: BenchmarkTask = "step time") -> Response:
    benchmark = find_benchmark()
    if benchmark is None:
        raise NotFoundError("benchmark for", "a figure")
    return page.figure(benchmark_chart(benchmark, task))


def _trials(page: Page) -> list[TrialCase]:
    return trials_of(page.app.get(LazyKnowledge).get().entries("case", None, page.caller.knowledge_tenant))


@clusters_router.get("")
def show_clusters(page: ReaderPage) -> Response:
    clusters, _ = list_clusters(page.app.database, page.caller.tenant, None, MAX_ITEMS)
    return page("clusters", clusters=clusters)


@clusters_router.get("/{name}")
def show_cluster(name: ClusterName, page: ReaderPage) -> Response:
    state = get_cluster(page.app.database, page.caller.tenant, name)
    meanings = {definition.name: definition.meaning for definition in constant_priors()}
    learned, memory = state.learned, state.memory_factor
    return page("cluster", cluster=state, learned=learned, memory=memory, meanings=meanings)


@clusters_router.get("/{name}/figure")
def get_cluster_figure(name: ClusterName, page: ReaderPage) -> Response:
    checked = get_cluster(page.app.database, page.caller.tenant, name).learned.checked
    if not checked:
        raise NotFoundError("measurement of", name)
    before = [Pair(run.measured_s, run.before_s, BEFORE, run.id) for run in checked]
    after = [Pair(run.measured_s, run.after_s, AFTER, run.id) for run in checked]
    return page.figure(accuracy_chart([*before, *after]))


@clusters_router.get("/{name}/probes")
def get_probes(name: ClusterName, page: ReaderPage) -> Response:
    probes = get_cluster(page.app.database, page.caller.tenant, name).probes
    if not probes:
        raise NotFoundError("probe of", name)
    return page.figure(probes_chart(probes))


def accuracy_chart(pairs: Sequence[Pair]) -> Chart:
    layers = list[Layer]()
    for name in dict.fromkeys(pair.group for pair in pairs):
        group = [pair for pair in pairs if pair.group == name]
        texts = [
            "\n".join([*([label(pair.title)] if pair.title else []), _told(pair), label(name)])
            for pair in group
        ]
        x, y = [pair.measured_s for pair in group], [pair.predicted_s for pair in group]
        dots = points(label(name), x, y, texts, COLOURS.get(name, "--accent"), 12 if name == OWN else 7)
        layers.append(dots | {"shape": "diamond"} if name == OWN else dots | {"opacity": 0.6})
    both = [value for pair in pairs for value in (pair.measured_s, pair.predicted_s)]
    ends = [min(both) / 1.5, max(both) * 1.5]
    lines = [line("equal", ends, ends, "solid", "--ink")]
    lines += [line("", ends, [end * factor for end in ends]) for factor in (OFF_RATIO, 1 / OFF_RATIO)]
    return chart(log_axis("measured, s", both), log_axis("predicted, s", both), 480, [*lines, *layers])


def _told(pair: Pair) -> str:
    off = pair.predicted_s / pair.measured_s - 1
    return f"measured {seconds(pair.measured_s)}, predicted {seconds(pair.predicted_s)} ({off:+.1%})"


def probes_chart(probes: Sequence[tuple[float, Run]]) -> Chart:
    """Each constant over its value in the first probe: what drifts shows."""
    layers = list[Layer]()
    for number, name in enumerate(sorted({name for _, run in probes for name in run.measured.constants})):
        own = [(at, run.measured.constants[name]) for at, run in probes if name in run.measured.constants]
        ratios = [value / own[0][1] for _, value in own]
        drawn = line(label(name), [at for at, _ in own], ratios, "solid", PALETTE[number % len(PALETTE)])
        drawn["texts"] = [f"{label(name)}: {value:.4g}, {stamp(at)}" for at, value in own]
        layers.append(drawn)
    x, y = ([value for layer in layers for value in layer[key]] for key in ("x", "y"))
    return chart(axis("when", x, "day"), axis("over the first probe", y), 360, layers)
