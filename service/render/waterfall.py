"""Where a step goes: from the ideal step at the device's peak loss by loss, as a difference of two plans."""

from collections.abc import Sequence
from typing import NamedTuple

from service.render.text import format_value, percent, seconds
from service.render.view import PlanView, ReportView
from tools.recommend.hypotheses import CAUSE_OF_TERM
from tools.recommend.losses import ATTENTION, IDEAL, LOSS_NAMES, PRODUCTS, losses_of, saving
from tools.recommend.workload import PredictedPlan

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
DRIVERS = {
    "recompute": "recompute", "tp_comm_exposed": "tp", "cp_comm_exposed": "cp", "ep_comm_exposed": "ep",
    "dp_comm_exposed": "zero_stage", "pp_comm_exposed": "pp", "pipeline_bubble": "pp",
}  # fmt: skip
"""The field of a plan that causes a loss: plans without it do not have the loss."""
SHOWN_SHARE = 0.003
"""Share of the step: a loss that is smaller in every plan cannot be seen."""
MAX_REASONS = 2


class Saving(NamedTuple):
    """The proposal that removes most of a loss."""

    rank: int
    seconds: str
    share: str
    changes: str


class LossChange(NamedTuple):
    """One loss in two plans, and what the report knows about it."""

    key: str
    name: str
    meaning: str
    driver: str
    before_width: float
    """In percent of the longest loss of both."""
    after_width: float
    amount: str
    change: str
    saves: bool
    evidence: Sequence[str]
    saving: Saving | None


def loss_changes(view: ReportView, before: PlanView, after: PlanView) -> list[LossChange]:
    """From one plan to another, loss by loss; what is too small in both to be seen is left out."""
    before_s, after_s = loss_seconds(view, before), loss_seconds(view, after)
    diagnosed_s, diagnosed_step_s = loss_seconds(view, view.plans[0]), view.plans[0].prediction.step_time_s
    left_s = [loss_seconds(view, proposal) for proposal in view.proposals]
    step_s = max(before.prediction.step_time_s, after.prediction.step_time_s)
    longest = max(*before_s.values(), *after_s.values())

    def evidence(key: str) -> list[str]:
        """What the agents say about its cause."""
        if key in (IDEAL, ATTENTION):
            return []
        cause = CAUSE_OF_TERM.get("compute" if key == PRODUCTS else key)
        return [it.summary for it in view.report.hypotheses if it.cause == cause][:MAX_REASONS]

    def saved(key: str) -> Saving | None:
        """Of the plan that was diagnosed, whichever two are shown."""
        found = saving(key, diagnosed_s, left_s, diagnosed_step_s)
        if found is None:
            return None
        best = view.proposals[found.place]
        changes = [f"{c.field} {format_value(c.from_)} → {format_value(c.to)}" for c in best.changes]
        share = percent(found.seconds / diagnosed_s[key])
        return Saving(found.place + 1, seconds(found.seconds, step_s), share, ", ".join(changes))

    rows = []
    for key, was in before_s.items():
        now, change = after_s[key], after_s[key] - was
        if max(was, now) >= SHOWN_SHARE * step_s:
            sign = "" if abs(change) < SHOWN_SHARE * step_s else "+" if change > 0 else "−"
            row = LossChange(
                key,
                LOSS_NAMES[key],
                MEANINGS[key],
                DRIVERS.get(key, ""),
                100 * max(was, 0.0) / longest,
                100 * max(now, 0.0) / longest,
                seconds(now, step_s),
                sign and sign + seconds(abs(change), step_s),
                change < 0,
                evidence(key),
                saved(key),
            )
            rows.append(row)
    return rows


def loss_seconds(view: ReportView, plan: PlanView) -> dict[str, float]:
    return losses_of(view.workload, PredictedPlan(plan.plan, plan.prediction))
