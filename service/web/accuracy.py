"""/accuracy: predicted against measured step times, of published runs and of this installation's trials."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from fastapi import APIRouter, Request
from fastapi.responses import Response

import service
from research.validate import COLOURS as COLOURS_validate
from research.validate import LABELS, MARGIN, SIZE
from service.api.deps import AppDep, Reader
from service.api.state import AppState
from service.auth import Caller
from service.errors import NotFoundError
from service.render.plotly import Figure, frame, label, line, log_axis
from service.render.text import seconds
from service.web.rendering import PageRoute, figure_answer, page
from tools.kb import Entry

OWN = "trials here"
OFF = 1.1
"""The dashed lines: so many times too long or too short."""


@dataclass(frozen=True)
class Pair:
    measured_s: float
    predicted_s: float
    group: str
    says: str = ""


COLOURS = {
    "dense": "--compute",
    "mixture of experts": "--tp_comm_exposed",
    "very small models": "--edge",
    OWN: "--ink",
}


SMALL = {"size": 7, "opacity": 0.6}
LARGE = {"size": 12, "symbol": "diamond", "line": {"color": "--page", "width": 1}}


def accuracy_figure(pairs: Sequence[Pair]) -> Figure:
    groups = list(dict.fromkeys(one.group for one in pairs))
    data = [_points(group, [one for one in pairs if one.group == group]) for group in groups]
    both = [value for one in pairs for value in (one.measured_s, one.predicted_s)]
    low, high = min(both) / 1.5, max(both) * 1.5
    lines = [line([low, high], [low, high], "equal", "solid", "--ink")]
    for factor, name in ((OFF, "10% too long"), (1 / OFF, "10% too short")):
        lines.append(line([low, high], [low * factor, high * factor], name) | {"showlegend": False})
    layout = frame("measured, s", "predicted, s", 480)
    layout["xaxis"], layout["yaxis"] = log_axis("measured, s", both), log_axis("predicted, s", both)
    return {"data": [*lines, *data], "layout": layout}


def _points(group: str, pairs: Sequence[Pair]) -> Figure:
    said = [
        f"{label(one.says)}{'<br>' if one.says else ''}measured {seconds(one.measured_s)}, "
        f"predicted {seconds(one.predicted_s)} ({one.predicted_s / one.measured_s - 1:+.1%})"
        for one in pairs
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label(group),
        "x": [one.measured_s for one in pairs],
        "y": [one.predicted_s for one in pairs],
        "text": said,
        "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
        "marker": {"color": COLOURS.get(group, "--accent"), **(LARGE if group == OWN else SMALL)},
    }


FOLDER = Path(service.__file__).resolve().parents[1] / "docs"
_CIRCLE = re.compile(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="3" fill="(#[0-9a-f]{6})"')
_TICK = re.compile(rf'y="{SIZE - MARGIN + 18}" text-anchor="middle">([\d.e+-]+)</text>')
_KINDS = {colour: LABELS[kind].partition(" (")[0] for kind, colour in COLOURS_validate.items()}


@dataclass(frozen=True)
class Section:
    title: str
    header: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Validation:
    pairs: list[Pair]
    sections: list[Section]


@cache
def find_validation(folder: Path = FOLDER) -> Validation | None:
    page, plot = folder / "validation.md", folder / "validation.svg"
    if not page.is_file() or not plot.is_file():
        return None
    return Validation(parse_plot(plot.read_text("utf-8")), parse_sections(page.read_text("utf-8")))


def parse_plot(svg: str) -> list[Pair]:
    """The reverse of research.validate.scatter_svg."""
    ticks = [float(text) for text in _TICK.findall(svg)]
    if len(ticks) < 2:
        return []
    low, high = min(ticks), max(ticks)

    def value(pixel: float) -> float:
        share = (pixel - MARGIN) / (SIZE - 2 * MARGIN)
        return float(low * (high / low) ** share)

    return [
        Pair(value(float(x)), value(SIZE - float(y)), _KINDS.get(colour, "dense"))
        for x, y, colour in _CIRCLE.findall(svg)
    ]


def parse_sections(markdown: str) -> list[Section]:
    """Every heading with the table under it."""
    found = []
    for part in re.split(r"^## ", markdown, flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        rows = [_cells(line) for line in rest.splitlines() if line.startswith("|")]
        if len(rows) > 2:
            found.append(Section(title.strip(), rows[0], rows[2:]))
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


STEP = "step_time_s"
ALL, DENSE, EXPERTS = "all", "dense", "mixture of experts"
INTERVAL = "80% interval holds"


@dataclass(frozen=True)
class Trial:
    id: str
    title: str
    status: str
    pair: Pair

    @property
    def error_ratio(self) -> float:
        return self.pair.predicted_s / self.pair.measured_s - 1


def trials_of(entries: Iterable[Entry]) -> list[Trial]:
    """Newest last, as the knowledge base keeps them."""
    return [trial for entry in entries if (trial := _find_trial(entry))]


@dataclass(frozen=True)
class Trust:
    """How predictions of published runs did, as the validation's page writes it."""

    runs: str
    median: str
    holds: str
    devices: frozenset[str]
    """On which some of them ran."""


def trust_of(validation: Validation | None, rows: str = ALL) -> Trust | None:
    """From the row of these runs; None where the page has none."""
    for section in validation.sections if validation else ():
        found = next((one for one in section.rows if one[0] == rows), [])
        row = dict(zip(section.header[1:], found[1:], strict=False))
        if {"rows", "median", INTERVAL} <= row.keys():
            return Trust(row["rows"], row["median"], row[INTERVAL], _devices(validation))
    return None


def _devices(validation: Validation | None) -> frozenset[str]:
    sections = validation.sections if validation else ()
    return frozenset(row[0] for one in sections if one.header[0] == "device" for row in one.rows)


def median_error(trials: list[Trial]) -> float | None:
    return median(abs(one.error_ratio) for one in trials) if trials else None


def _find_trial(entry: Entry) -> Trial | None:
    predicted = _number((entry.body.get("predicted") or {}).get(STEP))
    measured = _number((entry.body.get("measured") or {}).get(STEP))
    if predicted is None or measured is None:
        return None
    return Trial(entry.id, entry.title, entry.status, Pair(measured, predicted, OWN, entry.title))


def _number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value > 0 else None  # type: ignore[arg-type, operator]


router = APIRouter(prefix="/accuracy", route_class=PageRoute)


@router.get("")
def show(request: Request, app: AppDep, caller: Reader) -> Response:
    trials, validation = _trials(app, caller), find_validation()
    return page(
        request,
        "accuracy",
        caller,
        sections=validation.sections if validation else [],
        pairs=len(validation.pairs) if validation else 0,
        trials=trials,
        median=median_error(trials),
        trust=trust_of(validation),
    )


@router.get("/figure")
def get_figure(request: Request, app: AppDep, caller: Reader) -> Response:
    validation = find_validation()
    pairs = [*(validation.pairs if validation else []), *(one.pair for one in _trials(app, caller))]
    if not pairs:
        raise NotFoundError("measurement for", "a figure")
    return figure_answer(request, accuracy_figure(pairs))


def _trials(app: AppState, caller: Caller) -> list[Trial]:
    return trials_of(app.knowledge.get().entries("case", None, caller.knowledge_tenant))
