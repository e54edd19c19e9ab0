"""Hypotheses about what limits a plan: a cause of a closed list, what it costs, and what speaks for it.

What a prediction suggests and what traces show have one shape; bottleneck and lever follow from the cause.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import Field

from tools.cost.predict import Prediction
from tools.cost.terms import STEP_TERMS, Bottleneck
from tools.recommend.report import Evidence
from tools.scenario.spec import Result
from tools.trace.causes import LEVERS
from tools.trace.causes import Cause as TraceCause
from tools.trace.report import Profile

Cause = Literal[TraceCause, "out_of_memory"]
"""What a trace can show, and what only a prediction can."""
CAUSES: tuple[Cause, ...] = get_args(Cause)
Status = Literal["open", "supported", "refuted"]

BOTTLENECK_OF: dict[Cause, Bottleneck] = {
    "compute": "compute",
    "recomputation": "compute",
    "memory_bound_kernels": "memory",
    "exposed_tp": "communication",
    "exposed_cp": "communication",
    "exposed_ep": "communication",
    "exposed_dp": "communication",
    "exposed_pp": "communication",
    "slow_link": "communication",
    "late_host": "host",
    "slow_device": "compute",
    "small_messages": "communication",
    "bubble": "pipeline",
    "imbalance": "pipeline",
    "data_loading": "host",
    "out_of_memory": "memory",
    "trace_mismatch": "host",
}
LEVER_OF: dict[Cause, str] = dict(
    [*LEVERS.items(), ("out_of_memory", "memory: more sharding or recomputation")]
)
CAUSE_OF_TERM: dict[str, Cause] = {
    "compute": "compute",
    "recompute": "recomputation",
    "memory_bound_ops": "memory_bound_kernels",
    "optimizer": "memory_bound_kernels",
    "tp_comm_exposed": "exposed_tp",
    "cp_comm_exposed": "exposed_cp",
    "ep_comm_exposed": "exposed_ep",
    "dp_comm_exposed": "exposed_dp",
    "pp_comm_exposed": "exposed_pp",
    "pipeline_bubble": "bubble",
    "host_and_other": "data_loading",
}
MIN_SHARE = 0.02
"""Of the step: what costs less is no hypothesis worth testing."""
COMPETING_SHARE = 0.5
"""Of the dearest cause's cost: what is below cannot be the main thing to change."""


class Hypothesis(Result):
    """A cause of the closed list, what it costs, and where that stands."""

    cause: Cause
    source: Literal["model", "profile", "trial"]
    seconds: float | None = None
    """Of one step; None if the evidence does not say."""
    share: float | None = None
    """Of the step."""
    says: str
    predicts: str = ""
    """What would be seen if it holds."""
    status: Status = "open"
    evidence: list[Evidence] = Field(default_factory=list)
    ranks: list[int] = Field(default_factory=list)
    by: str = "expert-rules"

    @property
    def bottleneck(self) -> Bottleneck:
        return BOTTLENECK_OF[self.cause]

    @property
    def lever(self) -> str:
        return LEVER_OF[self.cause]

    @property
    def references(self) -> frozenset[str]:
        return frozenset(item.ref for item in self.evidence)


def predicted_hypotheses(prediction: Prediction) -> list[Hypothesis]:
    """Every term of the predicted step that costs enough, the dearest first."""
    costs: dict[Cause, float] = {}
    terms: dict[Cause, list[str]] = {}
    for term, seconds in prediction.breakdown_s.items():
        cause = CAUSE_OF_TERM[term]
        costs[cause] = costs.get(cause, 0.0) + seconds
        terms.setdefault(cause, []).append(term)
    made = [
        _predicted(cause, seconds, prediction.step_time_s, terms[cause])
        for cause, seconds in sorted(costs.items(), key=lambda item: -item[1])
        if seconds >= MIN_SHARE * prediction.step_time_s
    ]
    if prediction.fits:
        return made
    says = f"the plan needs {prediction.peak_memory_gib:.1f} GiB per device, more than there is"
    evidence = [Evidence(kind="model", ref="memory_gib", says=says)]
    memory = Hypothesis(
        cause="out_of_memory", source="model", says=says, evidence=evidence, predicts="the job does not start"
    )
    return [memory, *made]


def _predicted(cause: Cause, seconds: float, whole: float, terms: Sequence[str]) -> Hypothesis:
    phrase = " and ".join(STEP_TERMS[term].phrase for term in terms)
    says = f"{phrase}: {seconds:.3g} s, {seconds / whole:.0%} of the predicted step"
    evidence = [Evidence(kind="model", ref=f"breakdown_s.{term}", says=says) for term in terms]
    predicts = f"a profile shows {seconds / whole:.0%} of the step in {phrase}"
    return Hypothesis(
        cause=cause,
        source="model",
        seconds=seconds,
        share=seconds / whole,
        says=says,
        predicts=predicts,
        evidence=evidence,
    )


def profile_hypotheses(profile: Profile) -> list[Hypothesis]:
    """What the traces show, what to look at first in front; traces of another job show only that."""
    findings = profile.diagnosis.causes
    if profile.match is not None and not profile.match.agrees:
        findings = findings[:1]
    return [
        Hypothesis(
            cause=finding.cause,
            source="profile",
            seconds=finding.seconds,
            share=finding.share,
            says=finding.says,
            evidence=[Evidence(kind="profile", ref=item.ref, says=item.says) for item in finding.evidence],
            ranks=finding.ranks,
        )
        for finding in findings
        if finding.share >= MIN_SHARE
    ]


def competing(hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Those that may count as the main cause, the default first.

    What is measured outranks what is predicted; of either those whose cost is near the largest. Measured
    ones come with the first to look at in front: a fault of the run before what its plan costs.
    """
    alive = [h for h in hypotheses if h.status != "refuted"]
    unpriced = [h for h in alive if h.seconds is None]
    measured = [h for h in alive if h.source != "model" and h.seconds is not None]
    pool = measured or [h for h in alive if h.seconds is not None]
    first = measured[0] if measured else None
    pool.sort(key=lambda h: (h is not first, -(h.seconds or 0.0)))
    enough = COMPETING_SHARE * max((h.seconds or 0.0 for h in pool), default=0.0)
    near = [h for h in pool if (h.seconds or 0.0) >= enough or h is first]
    return [*unpriced, *near]


def accepted(hypotheses: Sequence[Hypothesis], cause: Cause, by: str) -> list[Hypothesis]:
    """The same list, with the cause that counts first and marked as supported."""
    chosen = next(h for h in competing(hypotheses) if h.cause == cause)
    update = {"status": "supported", "by": by}
    return [chosen.model_copy(update=update), *(h for h in hypotheses if h is not chosen)]
