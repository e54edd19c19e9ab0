"""Trend plots as SVG without script: a point per night, levels, marks where the environment changed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Self

from service.render.nightly import amount, day, span, term
from tools.nightly.findings import MEMORY, MFU, SPREAD, STEP_TIME
from tools.nightly.result import NightResult
from tools.physics.memory import GIB

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


class Tick(NamedTuple):
    position: float
    text: str


class NightDot(NamedTuple):
    x: float
    y: float
    text: str
    is_last: bool = False


class TrendLine(NamedTuple):
    key: str
    name: str
    points: str


class TrendPlot(NamedTuple):
    id: str
    title: str
    description: str
    """The plot in words, for screen readers."""
    dots: Sequence[NightDot]
    lines: Sequence[TrendLine]
    values: Sequence[Tick]
    dates: Sequence[Tick]
    marks: Sequence[Tick]
    """Nights on which the environment changed."""


@dataclass(frozen=True)
class PlotFrame:
    """From figures to coordinates."""

    count: int
    low: float
    high: float

    @classmethod
    def around(cls, count: int, values: Sequence[float]) -> Self:
        """Some room above and below; a figure that never moves is a line in the middle."""
        low, high = min(values), max(values)
        room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
        return cls(count, max(low - room, 0.0) if low >= 0 else low - room, high + room)

    def x(self, night: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (night / max(self.count - 1, 1)), 2)

    def y(self, value: float) -> float:
        height = HEIGHT - TOP - BOTTOM
        return round(TOP + height * (self.high - value) / ((self.high - self.low) or 1.0), 2)

    def line(self, points: Sequence[tuple[int, float]]) -> str:
        return " ".join(f"{self.x(night)},{self.y(value)}" for night, value in points)

    def steps(self, unit: float = 1.0) -> list[float]:
        """Round values in the unit that people read, at least two, at most one more than TICKS."""
        low, high = self.low / unit, self.high / unit
        power = 10.0 ** math.floor(math.log10((high - low) / TICKS))
        step = next(power * by for by in (1, 2, 5, 10) if power * by * TICKS >= high - low)
        return [unit * step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]

    def ticks(self, name: str) -> list[Tick]:
        """In the unit that people read, with as many digits as distinguish one from the next."""
        unit, sign = UNITS.get(name) or ((1.0, " s") if self.high >= 1.0 else (1e-3, " ms"))
        values = self.steps(unit)
        distance = (values[1] - values[0]) / unit
        digits = max(0, -math.floor(math.log10(distance) + 1e-9))
        return [Tick(self.y(value), f"{value / unit:.{digits}f}{sign}") for value in values]


def plots_of(result: NightResult) -> list[TrendPlot]:
    """The step time first, then its parts."""
    trend = result.trend
    at, plots = trend.at, []
    for name, figure in trend.figures.items():
        nights, values = figure.nights, figure.values
        if len(values) > 1:
            frame = PlotFrame.around(len(at), [*values, *figure.levels])
            dots = [
                NightDot(frame.x(n), frame.y(value), f"{day(at[n])}: {amount(name, value)}", n == nights[-1])
                for n, value in zip(nights, values, strict=True)
            ]
            # A line for each level: between two there is a step, not a slope.
            stretches = groupby(zip(nights, figure.levels, strict=False), key=lambda point: point[1])
            levels = [TrendLine("level", "level", frame.line(list(stretch))) for _, stretch in stretches]
            words = f"{TITLES[name]} of {len(values)} nights, from {span(name, values[0], values[-1])}"
            plots.append(_plot(name, TITLES[name], words, dots, levels, name, frame, result))
    if len(at) > 1 and trend.terms_s:  # the largest parts of the step, each a line
        points = {
            name: [(night, value) for night, value in enumerate(values) if value is not None]
            for name, values in trend.terms_s.items()
        }
        peaks = {name: max((value for _, value in line), default=0.0) for name, line in points.items()}
        largest = sorted(points, key=lambda name: -peaks[name])[:MAX_TERMS]
        frame = PlotFrame.around(len(at), [0.0, *(value for name in largest for _, value in points[name])])
        lines = [TrendLine(name, term(name), frame.line(points[name])) for name in largest]
        words = "Parts of the step: " + ", ".join(term(name) for name in largest)
        plots.insert(1, _plot("terms", "Parts of the step", words, [], lines, STEP_TIME, frame, result))
    return plots


def spark_points(values: Sequence[float], width: float = 100.0, height: float = 24.0) -> str:
    """A line without axes; a single night is one point at the bottom."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = (high - low) or 1.0
    steps = max(len(values) - 1, 1)
    return " ".join(
        f"{width * position / steps:.1f},{height - 1 - (height - 2) * (value - low) / span:.1f}"
        for position, value in enumerate(values)
    )


def _plot(
    id: str,
    title: str,
    description: str,
    dots: Sequence[NightDot],
    lines: Sequence[TrendLine],
    figure: str,
    frame: PlotFrame,
    result: NightResult,
) -> TrendPlot:
    """With its axes, and a mark for each change that coincides with the regression."""
    at = result.trend.at
    every = max(1, -(-len(at) // MAX_DATES))
    dates = [Tick(frame.x(night), day(at[night])[5:]) for night in range(0, len(at), every)]
    changes = result.attribution.changes if result.attribution else []
    marks = [
        Tick(frame.x(at.index(change.night)), f"{change.name} {change.before} to {change.now}")
        for change in changes
        if change.night in at
    ]
    return TrendPlot(id, title, description, dots, lines, frame.ticks(figure), dates, marks)
