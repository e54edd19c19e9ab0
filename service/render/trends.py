"""Trend plots of a nightly report as SVG without script: one point per night, levels as lines, marks where
the environment changed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from service.render.terms import amount, day, moved, term
from tools.cost.memory import GIB

Data = Mapping[str, Any]
WIDTH, HEIGHT = 720.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 12.0, 12.0, 24.0
TICKS = 6
MOST_DATES = 6
MOST_TERMS = 6
TITLES = {
    "step_time_s": "Step time",
    "mfu": "Model FLOPs utilization",
    "peak_memory_bytes": "Peak memory of the fullest device",
    "rank_spread_ratio": "Slowest rank beyond the middle one",
}

UNITS = {"mfu": (0.01, "%"), "rank_spread_ratio": (0.01, "%"), "peak_memory_bytes": (GIB, " GiB")}


@dataclass(frozen=True)
class Tick:
    place: float
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
    """As SVG writes them."""


@dataclass(frozen=True)
class Plot:
    id: str
    title: str
    says: str
    """The plot in words, for those who do not see it."""
    dots: Sequence[Dot]
    lines: Sequence[Line]
    values: Sequence[Tick]
    dates: Sequence[Tick]
    marks: Sequence[Tick]
    """Nights on which the surroundings changed."""


@dataclass(frozen=True)
class _Frame:
    """From figures to places."""

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


def plots_of(said: Data) -> list[Plot]:
    trend = said["trend"]
    drawn = [_plot(name, one, said) for name, one in trend["figures"].items() if len(one["values"]) > 1]
    return [*drawn[:1], *([_terms(said)] if _has_terms(trend) else []), *drawn[1:]]


def spark_points(values: Sequence[float], width: float = 100.0, height: float = 24.0) -> str:
    """A line without axes; a single night is a level one."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    span = (high - low) or 1.0
    steps = max(len(values) - 1, 1)
    return " ".join(
        f"{width * place / steps:.1f},{height - 1 - (height - 2) * (value - low) / span:.1f}"
        for place, value in enumerate(values)
    )


def _plot(name: str, one: Data, said: Data) -> Plot:
    at = said["trend"]["at"]
    nights, values, levels = one["nights"], one["values"], one["levels"]
    frame = _frame(len(at), [*values, *levels])
    points = list(zip(nights, values, strict=True))
    dots = [
        Dot(frame.x(night), frame.y(value), f"{day(at[night])}: {amount(name, value)}", night == nights[-1])
        for night, value in points
    ]
    says = f"{TITLES[name]} of {len(values)} nights, from {moved(name, values[0], values[-1])}"
    lines = _levels(list(zip(nights, levels, strict=False)), frame)
    ticks = _ticks(name, frame)
    return Plot(name, TITLES[name], says, dots, lines, ticks, _dates(at, frame), _marks(said, frame))


def _levels(points: Sequence[tuple[int, float]], frame: _Frame) -> list[Line]:
    """A line for each level: between two there is a step, not a slope."""
    stretches = [list(some) for _, some in groupby(points, key=lambda point: point[1])]
    return [Line("level", "level", frame.line(some)) for some in stretches]


def _has_terms(trend: Data) -> bool:
    return len(trend["at"]) > 1 and bool(trend["terms_s"])


def _terms(said: Data) -> Plot:
    """The largest parts of the step, each a line."""
    trend = said["trend"]
    known = {
        name: [(night, value) for night, value in enumerate(values) if value is not None]
        for name, values in trend["terms_s"].items()
    }
    largest = sorted(known, key=lambda name: -max((value for _, value in known[name]), default=0.0))[
        :MOST_TERMS
    ]
    frame = _frame(len(trend["at"]), [0.0, *(value for name in largest for _, value in known[name])])
    lines = [Line(name, term(name), frame.line(known[name])) for name in largest]
    says = "Parts of the step: " + ", ".join(term(name) for name in largest)
    ticks, dates = _ticks("step_time_s", frame), _dates(trend["at"], frame)
    return Plot("terms", "Parts of the step", says, [], lines, ticks, dates, _marks(said, frame))


def _frame(count: int, values: Sequence[float]) -> _Frame:
    """Some room above and below; a figure that never moves is a line in the middle."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
    return _Frame(count, max(low - room, 0.0) if low >= 0 else low - room, high + room)


def _ticks(name: str, frame: _Frame) -> list[Tick]:
    """In the unit that people read, with as many digits as tell one from the next."""
    unit, sign = UNITS.get(name) or ((1.0, " s") if frame.high >= 1.0 else (1e-3, " ms"))
    values = _steps(frame, unit)
    apart = (values[1] - values[0]) / unit
    digits = max(0, -math.floor(math.log10(apart) + 1e-9))
    return [Tick(frame.y(value), f"{value / unit:.{digits}f}{sign}") for value in values]


def _steps(frame: _Frame, unit: float = 1.0) -> list[float]:
    """Round values in the unit that people read, two at least, at most one more than TICKS."""
    low, high = frame.low / unit, frame.high / unit
    power = 10.0 ** math.floor(math.log10((high - low) / TICKS))
    step = next(power * by for by in (1, 2, 5, 10) if power * by * TICKS >= high - low)
    return [unit * step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _dates(at: Sequence[float], frame: _Frame) -> list[Tick]:
    every = max(1, -(-len(at) // MOST_DATES))
    return [Tick(frame.x(night), day(at[night])[5:]) for night in range(0, len(at), every)]


def _marks(said: Data, frame: _Frame) -> list[Tick]:
    """Changes that stand beside the regression."""
    at = said["trend"]["at"]
    why = said["attribution"]
    changes = why["changes"] if why else []
    return [
        Tick(frame.x(at.index(one["night"])), f"{one['name']} {one['before']} to {one['now']}")
        for one in changes
        if one["night"] in at
    ]
