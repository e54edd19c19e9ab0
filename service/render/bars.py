"""Bar charts as SVG without script, for the HTML report and the pages; every x is a percentage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graph.report import Trial
from service.render.terms import MEMORY, STEP, visible_terms
from service.render.text import gib, percent, seconds, times
from service.render.trials import NOTHING, TrialRow
from service.render.view import Planned, View
from tools.cost.predict import Prediction

LABEL_PERCENT = 7.0
"""A segment this wide has room for its share."""
MARGIN = 1.02
"""Room at the right of the longest bar, so that the end of a whisker is seen."""


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
class Mark:
    """A vertical line across a bar."""

    key: str
    x: float


@dataclass(frozen=True)
class Bar:
    name: str
    value: str
    aside: str
    segments: Sequence[Segment] = ()
    whisker: Whisker | None = None
    marks: Sequence[Mark] = ()
    alarm: bool = False

    @property
    def says(self) -> str:
        """The bar in words, for screen readers."""
        parts = ", ".join(f"{part.name} {part.amount} ({part.share})" for part in self.segments)
        aside = f"80% interval {self.aside}" if self.whisker and " to " in self.aside else self.aside
        return f"{self.name}: {self.value}, {aside}" + (f"; {parts}" if parts else "")


@dataclass(frozen=True)
class BarChart:
    id: str
    title: str
    caption: str
    bars: Sequence[Bar]
    legend: Mapping[str, str]


def report_charts(view: View) -> list[BarChart]:
    """Every chart of a report, in its order: trials, step time, memory, speed over today's."""
    charts = [trial_chart(view), *plan_charts(view.plans), _gain_chart(view.proposals)]
    return [chart for chart in charts if chart]


def plan_charts(plans: Sequence[Planned]) -> list[BarChart]:
    return [step_chart(plans), memory_chart(plans)]


def trial_chart(view: View) -> BarChart | None:
    """A bar per measurement, with what was predicted before it as the line under it."""
    measured = [
        (row, trial, trial.step_time_s)
        for row, trial in zip(view.trials, view.report.trials, strict=True)
        if trial.status == "measured" and trial.step_time_s
    ]
    if not measured:
        return None
    longest = MARGIN * max(max(step_s, trial.predicted.step_time_high_s) for _, trial, step_s in measured)
    bars = [_trial_bar(row, trial, step_s, longest) for row, trial, step_s in measured]
    caption = "The bar is the measured median step, the line under it what was predicted before."
    return BarChart("trials", "Measured on the cluster", caption, bars, {})


def _trial_bar(row: TrialRow, trial: Trial, step_s: float, longest: float) -> Bar:
    share = "" if row.gain == NOTHING else row.gain
    before = trial.predicted
    ends = before.step_time_low_s, before.step_time_s, before.step_time_high_s
    return Bar(
        row.name,
        seconds(step_s),
        f"predicted {seconds(before.step_time_s)} ({row.off})",
        [Segment("measured", "compute", 0.0, 100 * step_s / longest, seconds(step_s), share)],
        Whisker(*(100 * end / longest for end in ends)),
    )


def step_chart(plans: Sequence[Planned]) -> BarChart:
    longest = MARGIN * max(plan.prediction.step_time_high_s for plan in plans)
    bars = [
        Bar(
            plan.name,
            seconds(plan.prediction.step_time_s),
            plan.interval,
            _segments(plan.prediction.breakdown_s, STEP, longest, seconds),
            _step_whisker(plan.prediction, longest),
        )
        for plan in plans
    ]
    legend = visible_terms(STEP, [plan.prediction.breakdown_s for plan in plans])
    caption = "Predicted seconds of one step, by what fills them. The line under a bar is its 80% interval."
    return BarChart("step", "Where a step's time goes", caption, bars, legend)


def _step_whisker(prediction: Prediction, longest: float) -> Whisker:
    ends = prediction.step_time_low_s, prediction.step_time_s, prediction.step_time_high_s
    return Whisker(*(100 * end / longest for end in ends))


def memory_chart(plans: Sequence[Planned]) -> BarChart:
    """Each plan beside the memory of its own device: two sessions may differ in it."""
    widest = MARGIN * max(max(plan.capacity_gib, plan.prediction.peak_memory_gib) for plan in plans)
    limits = {(plan.limit_gib, plan.capacity_gib) for plan in plans}
    limit, capacity = next(iter(limits))
    same = len(limits) == 1
    caption = (
        "Predicted peak memory of the fullest device. Dashed: "
        f"the {f'{gib(limit)} ' if same else 'memory '}a plan may fill; "
        f"solid: the {f'{gib(capacity)} ' if same else 'memory '}a device has."
    )
    legend = visible_terms(MEMORY, [plan.prediction.memory_gib for plan in plans])
    bars = [_memory_bar(plan, widest) for plan in plans]
    return BarChart("memory", "Memory per device", caption, bars, legend)


def _memory_bar(plan: Planned, widest: float) -> Bar:
    peak, fits = plan.prediction.peak_memory_gib, plan.prediction.fits
    marks = Mark("dashed", 100 * plan.limit_gib / widest), Mark("solid", 100 * plan.capacity_gib / widest)
    return Bar(
        plan.name,
        gib(peak),
        f"{percent(peak / plan.capacity_gib)} of the device" if fits else "does not fit",
        _segments(plan.prediction.memory_gib, MEMORY, widest, gib),
        marks=marks,
        alarm=not fits,
    )


def _gain_chart(proposals: Sequence[Planned]) -> BarChart | None:
    gains = [
        (plan.name, (p.speedup_low, p.speedup, p.speedup_high))
        for plan in proposals
        if (p := plan.proposal) and p.speedup and p.speedup_low and p.speedup_high
    ]
    if not gains:
        return None
    lowest = min([1.0, *(low for _, (low, _, _) in gains)]) / MARGIN
    highest = max([1.0, *(high for _, (_, _, high) in gains)]) * MARGIN
    today = Mark("solid", _between(lowest, 1.0, highest))
    bars = [
        Bar(
            name,
            times(middle),
            f"{times(low)} to {times(high)}",
            whisker=Whisker(*(_between(lowest, value, highest) for value in (low, middle, high))),
            marks=[today],
        )
        for name, (low, middle, high) in gains
    ]
    caption = "The dot is the predicted speedup, the line its 80% interval, the rule today's speed."
    return BarChart("gain", "How much faster", caption, bars, {})


def _segments(
    parts: Mapping[str, float], names: Mapping[str, str], whole: float, amount: Callable[[float], str]
) -> list[Segment]:
    segments, x, total = [], 0.0, sum(parts.values()) or 1.0
    for key, name in names.items():
        width = 100 * parts[key] / whole
        if width > 0:
            segments.append(Segment(name, key, x, width, amount(parts[key]), f"{parts[key] / total:.0%}"))
        x += width
    return segments


def _between(low: float, value: float, high: float) -> float:
    return 100 * (value - low) / (high - low)
