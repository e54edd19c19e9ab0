"""Where the seconds of a plan's step go: the ideal at the device's peak and losses that add up to the step;
and which loss limits the plan: the one of which some lever takes away most."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from tools.model.operations import split_compute
from tools.model.predict import Prediction
from tools.physics.terms import STEP_TERMS
from tools.recommend.workload import PredictedPlan, Workload
from tools.scenario.spec import ClosedModel

IDEAL, PRODUCTS, ATTENTION = "ideal", "products", "attention"
LOSS_NAMES: Mapping[str, str] = {
    IDEAL: "ideal at the device's peak",
    PRODUCTS: "inefficiency of products",
    ATTENTION: "inefficiency of attention",
    **{key: term.label for key, term in STEP_TERMS.items() if key != "compute"},
}
WORTH_SAVING = 0.005
"""Share of the step: a lever that saves less of a loss is not named for it."""
SHRINKS = 0.1
"""Share of a loss that a lever must take away to be said to shrink it."""


class Limit(ClosedModel):
    """The loss that limits a plan, and which proposal takes most of it away."""

    key: str
    name: str
    seconds: float
    share: float
    """Its share of the step."""
    rank: int | None = None
    """None: no proposal shrinks it; kernels, software or the network would have to."""
    source: Literal["model", "profile"] = "model"

    @property
    def kind(self) -> str:
        return "Largest removable loss" if self.rank or self.source == "profile" else "Largest loss"

    @property
    def in_words(self) -> str:
        return f"{self.kind}: {self.name}, {self.share:.0%} of the step"


class Saving(NamedTuple):
    place: int
    """The place of the other plan that has least of the loss."""
    seconds: float


def losses_of(workload: Workload, predicted: PredictedPlan) -> dict[str, float]:
    """Seconds of one step by loss, the ideal first; they add up to the predicted step."""
    compute = split_compute(workload.with_plan(predicted.plan), workload.calibration)
    step = predicted.prediction
    ideal_s = step.mfu * step.step_time_s
    attention_s = compute.attention_s - compute.attention_ideal_s
    products_s = step.breakdown_s["compute"] - ideal_s - attention_s
    rest = {key: step.breakdown_s[key] for key in STEP_TERMS if key != "compute"}
    return {IDEAL: ideal_s, PRODUCTS: products_s, ATTENTION: attention_s, **rest}


def saving(
    key: str, lost_s: Mapping[str, float], others: Sequence[Mapping[str, float]], step_s: float
) -> Saving | None:
    """Which of the other plans shrinks this loss, and by how much, if one does."""
    if key == IDEAL or not others:
        return None
    place = min(range(len(others)), key=lambda each: others[each][key])
    saved_s = lost_s[key] - others[place][key]
    return Saving(place, saved_s) if saved_s >= max(WORTH_SAVING * step_s, SHRINKS * lost_s[key]) else None


def limit_of(
    prediction: Prediction, lost_s: Mapping[str, float], others: Sequence[Mapping[str, float]]
) -> Limit:
    """The loss of which another plan takes away most; if none does, the largest that is not the ideal."""
    step_s = prediction.step_time_s
    found = {key: saving(key, lost_s, others, step_s) for key in lost_s if key != IDEAL}
    removable = {key: saved.seconds for key, saved in found.items() if saved}
    key = max(removable or found, key=lambda each: removable.get(each, lost_s[each]))
    saved = found[key]
    return Limit(
        key=key,
        name=LOSS_NAMES[key],
        seconds=lost_s[key],
        share=lost_s[key] / step_s,
        rank=saved.place + 1 if saved else None,
    )
