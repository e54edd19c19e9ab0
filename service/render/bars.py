"""Bar charts as SVG without script, for the HTML report and the pages; every x is a percentage."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from graph.report import TrialPrediction
from service.render.text import MEMORY, STEP, gib, percent, seconds, times, visible_terms
from service.render.trials import NOTHING
from service.render.view import PlanView, ReportView
from tools.model.predict import Prediction

LABEL_PERCENT = 7.0
"""A segment this wide has room for its share."""
MARGIN = 1.02
"""Room at the right of the longest bar, so that the end of a whisker is seen."""


class Segment(NamedTuple):
    name: str
    key: str
    x: float
    width: float
    amount: str
    share: str

    @property
    def has_label(self) -> bool:
        return self.width >= LABEL_PERCENT


class Whisker(NamedTuple):
    """An 80% interval around its middle."""

    low: float
    middle: float
    high: float


class BarMark(NamedTuple):
    """A vertical line across a bar."""

    key: str
    x: float


class Bar(NamedTuple):
    name: str
    value: str
    aside: str
    segments: Sequence[Segment] = ()
    whisker: Whisker | None = None
    marks: Sequence[BarMark] = ()
    alarm: bool = False
    spoken_aside: str = ""
    """What screen readers say instead of the text beside the bar."""

    @property
    def summary(self) -> str:
        """The bar in words, for screen readers."""
        parts = ", ".join(f"{part.name} {part.amount} ({part.share})" for part in self.segments)
        spoken = f"{self.name}: {self.value}, {self.spoken_aside or self.aside}"
        return f"{spoken}; {parts}" if parts else spoken


@dataclass(frozen=True)
class BarChart:
    id: str
    title: str
    caption: str
    bars: Sequence[Bar]
    legend: Mapping[str, str]


def report_charts(view: ReportView) -> list[BarChart]:
    """Every chart of a report, in its order: trials, step time, memory, speed over today's."""
    charts = [trial_chart(view), *plan_charts(view.plans), gain_chart(view.proposals)]
    return [chart for chart in charts if chart]


def plan_charts(plans: Sequence[PlanView]) -> list[BarChart]:
    return [step_chart(plans), memory_chart(plans)]


def trial_chart(view: ReportView) -> BarChart | None:
    """A bar per measurement, with what was predicted before it as the line under it."""
    measured = [
        (row, trial.predicted, trial.step_time_s)
        for row, trial in zip(view.trials, view.report.trials, strict=True)
        if trial.status == "measured" and trial.step_time_s
    ]
    if not measured:
        return None
    longest = MARGIN * max(max(step_s, before.step_time_high_s) for _, before, step_s in measured)
    bars = []
    for row, before, step_s in measured:
        share = "" if row.gain == NOTHING else row.gain
        segment = Segment("measured", "compute", 0.0, 100 * step_s / longest, seconds(step_s), share)
        aside = f"predicted {seconds(before.step_time_s)} ({row.off})"
        bars.append(Bar(row.name, seconds(step_s), aside, [segment], _step_whisker(before, longest)))
    caption = "The bar is the measured median step, the line under it what was predicted before."
    return BarChart("trials", "Measured on the cluster", caption, bars, {})


def step_chart(plans: Sequence[PlanView]) -> BarChart:
    longest = MARGIN * max(plan.prediction.step_time_high_s for plan in plans)
    bars = [
        Bar(
            plan.name,
            seconds(plan.prediction.step_time_s),
            plan.interval,
            _segments(plan.prediction.breakdown_s, STEP, longest, seconds),
            _step_whisker(plan.prediction, longest),
            spoken_aside=f"80% interval {plan.interval}",
        )
        for plan in plans
    ]
    legend = visible_terms(STEP, [plan.prediction.breakdown_s for plan in plans])
    caption = "Predicted seconds of one step, by what fills them. The line under a bar is its 80% interval."
    return BarChart("step", "Where a step's time goes", caption, bars, legend)


def memory_chart(plans: Sequence[PlanView]) -> BarChart:
    """Each plan beside the memory of its own device: two sessions may differ in it."""
    widest = MARGIN * max(max(plan.capacity_gib, plan.prediction.peak_memory_gib) for plan in plans)
    bars = []
    for plan in plans:
        peak, fits = plan.prediction.peak_memory_gib, plan.prediction.fits
        marks = [("dashed", plan.limit_gib), ("solid", plan.capacity_gib)]
        bar = Bar(
            plan.name,
            gib(peak),
            f"{percent(peak / plan.capacity_gib)} of the device" if fits else "does not fit",
            _segments(plan.prediction.memory_gib, MEMORY, widest, gib),
            marks=[BarMark(key, 100 * at / widest) for key, at in marks],
            alarm=not fits,
        )
        bars.append(bar)
    limits = {(gib(plan.limit_gib), gib(plan.capacity_gib)) for plan in plans}
    limit, capacity = limits.pop() if len(limits) == 1 else ("memory", "memory")
    caption = (
        f"Predicted peak memory of the fullest device. Dashed: the {limit} a plan may fill; "
        f"solid: the {capacity} a device has."
    )
    legend = visible_terms(MEMORY, [plan.prediction.memory_gib for plan in plans])
    return BarChart("memory", "Memory per device", caption, bars, legend)


def gain_chart(proposals: Sequence[PlanView]) -> BarChart | None:
    gains = [
        (plan.name, (p.speedup_low, p.speedup, p.speedup_high))
        for plan in proposals
        if (p := plan.proposal) and p.speedup and p.speedup_low and p.speedup_high
    ]
    if not gains:
        return None
    left = min([1.0, *(low for _, (low, _, _) in gains)]) / MARGIN
    right = max([1.0, *(high for _, (_, _, high) in gains)]) * MARGIN
    bars = []
    for name, gain in gains:
        aside = f"{times(gain[0])} to {times(gain[2])}"
        low, middle, high, today = (100 * (value - left) / (right - left) for value in (*gain, 1.0))
        whisker, marks = Whisker(low, middle, high), [BarMark("solid", today)]
        spoken = f"80% interval {aside}"
        bars.append(Bar(name, times(gain[1]), aside, whisker=whisker, marks=marks, spoken_aside=spoken))
    caption = "The dot is the predicted speedup, the line its 80% interval, the rule today's speed."
    return BarChart("gain", "How much faster", caption, bars, {})


def _step_whisker(prediction: Prediction | TrialPrediction, longest: float) -> Whisker:
    ends = prediction.step_time_low_s, prediction.step_time_s, prediction.step_time_high_s
    return Whisker(*(100 * end / longest for end in ends))


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
