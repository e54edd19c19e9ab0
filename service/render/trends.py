"""Trend plots of a nightly report as SVG without script: one point per night, levels as lines, marks where
the environment changed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from service.render.nightly import amount, day, span, term
from tools.cost.memory import GIB
from tools.nightly.findings import MEMORY, MFU, SPREAD, STEP_TIME
from tools.nightly.result import FigureTrend, NightResult

WIDTH, HEIGHT = 720.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 12.0, 12.0, 24.0
TICKS = 6
MAX_DATES = 6
MAX_TERMS = 6
TITLES = {
    STEP_TIME: "Step time",
    MFU: "Model FLOPs utilization",
    MEMORY: "Peak memory of the fullest device",
    SPREAD: "Slowest rank beyond the median rank",
}
UNITS = {MFU: (0.01, "%"), SPREAD: (0.01, "%"), MEMORY: (GIB, " GiB")}


@dataclass(frozen=True)
class Tick:
    position: float
    text: str


@dataclass(frozen=True)
class Dot:
    x: float
    y: float
    text: str
    is_last: bool = False


@dataclass(frozen=True)
class Line:
    key: str
    name: str
    points: str
    """In SVG's notation."""


@dataclass(frozen=True)
class Plot:
    id: str
    title: str
    description: str
    """The plot in words, for screen readers."""
    dots: Sequence[Dot]
    lines: Sequence[Line]
    values: Sequence[Tick]
    dates: Sequence[Tick]
    marks: Sequence[Tick]
    """Nights on which the environment changed."""


@dataclass(frozen=True)
class _Frame:
    """From figures to coordinates."""

    count: int
    low: float
    high: float

    def x(self, night: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (night / max(self.count - 1, 1)), 2)

    def y(self, value: float) -> float:
        height = HEIGHT - TOP - BOTTOM
        return round(TOP + height * (self.high - value) / ((self.high - self.low) or 1.0), 2)

    def line(self, points: Sequence[tuple[int, float]]) -> str:
        return " ".join(f"{self.x(night)},{self.y(value)}" for night, value in points)


def plots_of(result: NightResult) -> list[Plot]:
    """The step time first, then its parts."""
    trend = result.trend
    plots = [_plot(name, figure, result) for name, figure in trend.figures.items() if len(figure.values) > 1]
    terms = [_terms_plot(result)] if len(trend.at) > 1 and trend.terms_s else []
    return [*plots[:1], *terms, *plots[1:]]


def spark_points(values: Sequence[float], width: float = 100.0, height: float = 24.0) -> str:
    """A line without axes; a single night is one point at the bottom."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = (high - low) or 1.0
    steps = max(len(values) - 1, 1)
    return " ".join(
        f"{width * position / steps:.1f},{height - 1 - (height - 2) * (value - low) / span:.1f}"
        for position, value in enumerate(values)
    )


def _plot(name: str, trend: FigureTrend, result: NightResult) -> Plot:
    at, nights, values = result.trend.at, trend.nights, trend.values
    frame = _frame(len(at), [*values, *trend.levels])
    dots = [
        Dot(frame.x(night), frame.y(value), f"{day(at[night])}: {amount(name, value)}", night == nights[-1])
        for night, value in zip(nights, values, strict=True)
    ]
    return Plot(
        id=name,
        title=TITLES[name],
        description=f"{TITLES[name]} of {len(values)} nights, from {span(name, values[0], values[-1])}",
        dots=dots,
        lines=_levels(list(zip(nights, trend.levels, strict=False)), frame),
        values=_ticks(name, frame),
        dates=_dates(at, frame),
        marks=_marks(result, frame),
    )


def _levels(points: Sequence[tuple[int, float]], frame: _Frame) -> list[Line]:
    """A line for each level: between two there is a step, not a slope."""
    stretches = [list(stretch) for _, stretch in groupby(points, key=lambda point: point[1])]
    return [Line("level", "level", frame.line(stretch)) for stretch in stretches]


def _terms_plot(result: NightResult) -> Plot:
    """The largest parts of the step, each a line."""
    at = result.trend.at
    points = {
        name: [(night, value) for night, value in enumerate(values) if value is not None]
        for name, values in result.trend.terms_s.items()
    }
    peaks = {name: max((value for _, value in line), default=0.0) for name, line in points.items()}
    largest = sorted(points, key=lambda name: -peaks[name])[:MAX_TERMS]
    frame = _frame(len(at), [0.0, *(value for name in largest for _, value in points[name])])
    return Plot(
        id="terms",
        title="Parts of the step",
        description="Parts of the step: " + ", ".join(term(name) for name in largest),
        dots=[],
        lines=[Line(name, term(name), frame.line(points[name])) for name in largest],
        values=_ticks(STEP_TIME, frame),
        dates=_dates(at, frame),
        marks=_marks(result, frame),
    )


def _frame(count: int, values: Sequence[float]) -> _Frame:
    """Some room above and below; a figure that never moves is a line in the middle."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return _Frame(count, max(low - room, 0.0) if low >= 0 else low - room, high + room)


def _ticks(name: str, frame: _Frame) -> list[Tick]:
    """In the unit that people read, with as many digits as distinguish one from the next."""
    unit, sign = UNITS.get(name) or ((1.0, " s") if frame.high >= 1.0 else (1e-3, " ms"))
    values = _steps(frame, unit)
    distance = (values[1] - values[0]) / unit
    digits = max(0, -math.floor(math.log10(distance) + 1e-9))
    return [Tick(frame.y(value), f"{value / unit:.{digits}f}{sign}") for value in values]


def _steps(frame: _Frame, unit: float = 1.0) -> list[float]:
    """Round values in the unit that people read, at least two, at most one more than TICKS."""
    low, high = frame.low / unit, frame.high / unit
    power = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    step = next(power * by for by in (1, 2, 5, 10) if power * by * TICKS >= high - low)
    return [unit * step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _dates(at: Sequence[float], frame: _Frame) -> list[Tick]:
    every = max(1, -(-len(at) // MAX_DATES))
    return [Tick(frame.x(night), day(at[night])[5:]) for night in range(0, len(at), every)]


def _marks(result: NightResult, frame: _Frame) -> list[Tick]:
    """Changes that coincide with the regression."""
    at = result.trend.at
    changes = result.attribution.changes if result.attribution else []
    return [
        Tick(frame.x(at.index(change.night)), f"{change.name} {change.before} to {change.now}")
        for change in changes
        if change.night in at
    ]
