"""The loss waterfall: from the step that the device's peak would allow to the predicted one, loss by loss."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from graph.report import Report
from service.render.terms import STEP
from service.render.text import format_value, percent, seconds
from service.render.view import Planned, View
from tools.cost.operations import split_compute
from tools.recommend.hypotheses import CAUSE_OF_TERM

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
