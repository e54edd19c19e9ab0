"""Bar charts of the HTML report as SVG without script; every x is a percentage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from service.render.terms import MEMORY, STEP
from service.render.text import gib, percent, seconds, times
from service.render.view import NOTHING, Planned, TrialRow, View

LABEL_PERCENT = 7.0
"""A segment this wide has room for its share."""
MARGIN = 1.02
"""What the longest bar leaves free at its right, so that the end of a whisker is seen."""

STEP_INTERVAL = ("step_time_low_s", "step_time_s", "step_time_high_s")


@dataclass(frozen=True)
class Segment:
    name: str
    key: str
    x: float
    width: float
    amount: str
    share: str

    @property
    def has_label(self) -> bool:
        return self.width >= LABEL_PERCENT


@dataclass(frozen=True)
class Whisker:
    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Bar:
    name: str
    detail: str
    value: str
    aside: str
    segments: Sequence[Segment] = ()
    whisker: Whisker | None = None
    alarm: bool = False

    @property
    def says(self) -> str:
        """The bar in words, for those who do not see it."""
        parts = ", ".join(f"{one.name} {one.amount} ({one.share})" for one in self.segments)
        aside = f"80% interval {self.aside}" if self.whisker and " to " in self.aside else self.aside
        return f"{self.name}: {self.value}, {aside}" + (f"; {parts}" if parts else "")


@dataclass(frozen=True)
class Line:
    """A vertical mark through all bars of a figure."""

    key: str
    x: float


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    caption: str
    bars: Sequence[Bar]
    legend: Mapping[str, str]
    lines: Sequence[Line] = ()


def figures_of(view: View) -> list[Figure]:
    compared = [one for one in view.proposals if one.gain]
    gains = [_gain_figure(compared)] if compared else []
    return [*_trial_figure(view), _step_figure(view), _memory_figure(view), *gains]


def _trial_figure(view: View) -> list[Figure]:
    """A bar for each measurement, with what was predicted before it as the line under it."""
    pairs = zip(view.trials, view.report["trials"], strict=True)
    shown = [(row, one) for row, one in pairs if one["status"] == "measured"]
    if not shown:
        return []
    longest = MARGIN * max(max(one["step_time_s"], one["predicted"]["step_time_high_s"]) for _, one in shown)
    bars = [_trial_bar(row, one, longest) for row, one in shown]
    caption = "The bar is the median step that was measured, the line under it what was predicted before."
    return [Figure("trials", "Measured on the cluster", caption, bars, {})]


def _trial_bar(row: TrialRow, trial: Mapping[str, Any], longest: float) -> Bar:
    width = 100 * trial["step_time_s"] / longest
    return Bar(
        row.name,
        row.plan,
        seconds(trial["step_time_s"]),
        f"predicted {seconds(trial['predicted']['step_time_s'])} ({row.off})",
        [Segment("measured", "compute", 0.0, width, seconds(trial["step_time_s"]), _share(row))],
        Whisker(*(100 * trial["predicted"][name] / longest for name in STEP_INTERVAL)),
    )


def _step_figure(view: View) -> Figure:
    longest = MARGIN * max(one.prediction["step_time_high_s"] for one in view.plans)
    bars = [
        Bar(
            one.name,
            one.summary,
            seconds(one.prediction["step_time_s"]),
            one.interval,
            _segments(one.prediction["breakdown_s"], STEP, longest, seconds),
            Whisker(*(100 * one.prediction[name] / longest for name in STEP_INTERVAL)),
        )
        for one in view.plans
    ]
    caption = "Predicted seconds of one step, by what fills them. The line under a bar is its 80% interval."
    return Figure("step", "Where a step's time goes", caption, bars, view.shown(STEP, "breakdown_s"))


def _share(row: TrialRow) -> str:
    return "" if row.gain == NOTHING else row.gain


def _memory_figure(view: View) -> Figure:
    widest = MARGIN * max([view.capacity_gib, *(one.prediction["peak_memory_gib"] for one in view.plans)])
    bars = [_memory_bar(one, view, widest) for one in view.plans]
    caption = (
        f"Predicted peak memory of the fullest device. Dashed: the {gib(view.limit_gib)} a plan may fill; "
        f"solid: the {gib(view.capacity_gib)} a device has."
    )
    lines = [
        Line("dashed", 100 * view.limit_gib / widest),
        Line("solid", 100 * view.capacity_gib / widest),
    ]
    return Figure("memory", "Memory a device", caption, bars, view.shown(MEMORY, "memory_gib"), lines)


def _memory_bar(one: Planned, view: View, widest: float) -> Bar:
    peak, fits = one.prediction["peak_memory_gib"], one.prediction["fits"]
    return Bar(
        one.name,
        one.summary,
        gib(peak),
        f"{percent(peak / view.capacity_gib)} of the device" if fits else "does not fit",
        _segments(one.prediction["memory_gib"], MEMORY, widest, gib),
        alarm=not fits,
    )


def _gain_figure(proposals: Sequence[Planned]) -> Figure:
    rows = [one.proposal for one in proposals if one.proposal]
    lowest = min([1.0, *(row["speedup_low"] for row in rows)]) / MARGIN
    highest = max([1.0, *(row["speedup_high"] for row in rows)]) * MARGIN
    bars = [
        Bar(
            one.name,
            one.summary,
            times(row["speedup"]),
            f"{times(row['speedup_low'])} to {times(row['speedup_high'])}",
            whisker=Whisker(
                *(_between(lowest, row[name], highest) for name in ("speedup_low", "speedup", "speedup_high"))
            ),
        )
        for one, row in zip(proposals, rows, strict=True)
    ]
    caption = (
        "Speed over today's. The dot is the prediction, the line its 80% interval, the rule today's speed."
    )
    return Figure(
        "gain", "How much faster", caption, bars, {}, [Line("solid", _between(lowest, 1.0, highest))]
    )


def _segments(
    parts: Mapping[str, float], names: Mapping[str, str], whole: float, told: Callable[[float], str]
) -> list[Segment]:
    found, x, total = [], 0.0, sum(parts.values()) or 1.0
    for key, name in names.items():
        width = 100 * parts[key] / whole
        if width > 0:
            found.append(Segment(name, key, x, width, told(parts[key]), f"{parts[key] / total:.0%}"))
        x += width
    return found


def _between(low: float, value: float, high: float) -> float:
    return 100 * (value - low) / (high - low)
