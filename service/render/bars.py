"""Bar charts and the loss waterfall as SVG without script, for the HTML report and the pages; every x is a
percentage.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from graph.report import Report, Trial
from service.render.text import MEMORY, STEP, format_value, gib, percent, seconds, times, visible_terms
from service.render.trials import NOTHING, TrialRow
from service.render.view import Planned, View
from tools.cost.operations import split_compute
from tools.cost.predict import Prediction
from tools.recommend.hypotheses import CAUSE_OF_TERM

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


IDEAL, PRODUCTS, ATTENTION = "ideal", "products", "attention"
NAMES = {
    IDEAL: "ideal at the device's peak",
    PRODUCTS: "inefficiency of products",
    ATTENTION: "inefficiency of attention",
    **{key: name for key, name in STEP.items() if key != "compute"},
}
MEANINGS = {
    IDEAL: "The FLOPs of the model at the peak of the device: no plan on these devices is faster.",
    PRODUCTS: "Matrix products run below the peak: shapes, tiles, waves, power; uneven stages too.",
    ATTENTION: "The attention core runs further below the peak than products of the same FLOPs.",
    "recompute": "Forward work that the backward pass repeats to save memory.",
    "memory_bound_ops": "Norms, activations, casts and the loss move bytes and compute little.",
    "tp_comm_exposed": "Tensor-parallel messages that no product hides.",
    "cp_comm_exposed": "Keys and values sent around the context-parallel ring that attention does not hide.",
    "ep_comm_exposed": "Tokens on their way to their experts and back, not hidden by compute.",
    "dp_comm_exposed": "Gradients and parameters of data-parallel ranks that compute does not hide.",
    "pp_comm_exposed": "Activations sent from stage to stage.",
    "pipeline_bubble": "Stages that wait while the pipeline fills and drains.",
    "optimizer": "The update of the parameters, limited by memory bandwidth.",
    "host_and_other": "Launches, gaps between kernels, and what a step costs once.",
}
FIGURES = {
    PRODUCTS: ("roofline", "Roofline"),
    ATTENTION: ("roofline", "Roofline"),
    "recompute": ("memory", "Memory per device"),
    "memory_bound_ops": ("roofline", "Roofline"),
    **dict.fromkeys(
        ("tp_comm_exposed", "cp_comm_exposed", "ep_comm_exposed", "dp_comm_exposed", "pp_comm_exposed"),
        ("collectives", "Collectives by size"),
    ),
}
"""The figure with the evidence for a loss."""
SHOWN_SHARE = 0.003
"""Of the step: what is smaller in every plan cannot be seen."""
WORTH_SAVING = 0.005
"""Of the step: a proposal that saves less of a loss is not named for it."""


@dataclass(frozen=True)
class Saving:
    """The proposal that removes most of a loss."""

    rank: int
    seconds: str
    share: str
    changes: str


@dataclass(frozen=True)
class Loss:
    key: str
    name: str
    meaning: str
    amount: str
    share: str
    x: float
    width: float
    """Where its bar begins and how wide it is, in percent of the chart."""
    evidence: Sequence[str] = ()
    figure: tuple[str, str] | None = None
    saving: Saving | None = None


@dataclass(frozen=True)
class Waterfall:
    """Of today's plan, or of the first proposal in a cold start."""

    plan: Planned
    losses: Sequence[Loss]
    total: Loss
    measured: Loss | None
    """The measured step, where there is one."""


def loss_seconds(view: View, plan: Planned) -> dict[str, float]:
    """Seconds of one step by loss; they add up to the predicted step."""
    compute = split_compute(view.workload.with_plan(plan.plan), view.workload.calibration)
    step = plan.prediction
    ideal_s = step.mfu * step.step_time_s
    attention_s = compute.attention_s - compute.attention_ideal_s
    products_s = step.breakdown_s["compute"] - ideal_s - attention_s
    rest = {key: step.breakdown_s[key] for key in STEP if key != "compute"}
    return {IDEAL: ideal_s, PRODUCTS: products_s, ATTENTION: attention_s, **rest}


def waterfall_of(view: View) -> Waterfall:
    plans = view.plans
    lost = [loss_seconds(view, plan) for plan in plans]
    plan, own = plans[0], lost[0]
    step_s, measured_s = plan.prediction.step_time_s, measured_step_s(view.report, plan)
    longest = max(step_s, measured_s or 0.0)
    losses, x = [], 0.0
    for key, value in own.items():
        if value / step_s >= SHOWN_SHARE:
            losses.append(
                Loss(
                    key,
                    NAMES[key],
                    MEANINGS[key],
                    seconds(value, step_s),
                    percent(value / step_s),
                    100 * x / longest,
                    100 * value / longest,
                    _evidence(view.report, key),
                    FIGURES.get(key),
                    _saving(key, value, step_s, view.proposals, lost[len(plans) - len(view.proposals) :]),
                )
            )
        x += value
    name = f"{plan.name}'s step" if plan.name == "today" else f"step of {plan.name}"
    total = Loss("total", f"{name}, predicted", "", seconds(step_s), "", 0.0, 100 * step_s / longest)
    measured = None
    if measured_s:
        amount, width = seconds(measured_s), 100 * measured_s / longest
        measured = Loss("total", f"{name}, measured", "", amount, "", 0.0, width)
    return Waterfall(plan, losses, total, measured)


def measured_step_s(report: Report, plan: Planned) -> float | None:
    """By a trial, or by traces of today's plan that are of this job."""
    if plan.measured and plan.measured.step_time_s:
        return plan.measured.step_time_s
    if plan.proposal or report.diagnosis.cause == "trace_mismatch":
        return None
    if report.diagnosis.recalibrated:
        return report.diagnosis.recalibrated.measured_s
    profile = report.diagnosis.profile
    return profile.step_time_s if profile else None


def _evidence(report: Report, key: str) -> list[str]:
    """What the agents say about its cause."""
    cause = CAUSE_OF_TERM.get("compute" if key in (PRODUCTS, ATTENTION) else key)
    if key in (IDEAL, ATTENTION):
        return []
    return [hypothesis.says for hypothesis in report.hypotheses if hypothesis.cause == cause][:2]


def _saving(
    key: str, value: float, step_s: float, proposals: Sequence[Planned], lost: Sequence[Mapping[str, float]]
) -> Saving | None:
    if key == IDEAL or not proposals:
        return None
    left_s, plan = min(zip((own[key] for own in lost), proposals, strict=True), key=lambda pair: pair[0])
    saved_s = value - left_s
    if plan.proposal is None or saved_s < WORTH_SAVING * step_s:
        return None
    changes = ", ".join(
        f"{change.field} {format_value(change.from_)} → {format_value(change.to)}"
        for change in plan.proposal.changes
        if change.from_ != change.to
    )
    return Saving(plan.proposal.rank, seconds(saved_s, step_s), percent(saved_s / value), changes)
