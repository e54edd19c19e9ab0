"""Hypotheses about what limits a plan: a cause of a closed list, what it costs, and what speaks for it.

What a prediction suggests and what traces show have one shape; bottleneck and lever follow from the cause.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from pydantic import Field

from tools.model.predict import Prediction
from tools.physics.terms import STEP_TERMS, Bottleneck
from tools.recommend.report import Evidence
from tools.scenario.spec import ClosedModel
from tools.trace.causes import CAUSES as TRACE_CAUSES
from tools.trace.causes import Cause
from tools.trace.host import HostCause
from tools.trace.report import Profile

HypothesisCause = Literal[Cause, "out_of_memory"]
"""What a trace can show, and what only a prediction can."""
CAUSES: tuple[HypothesisCause, ...] = get_args(HypothesisCause)
HypothesisStatus = Literal["open", "supported", "refuted"]

CAUSES_OF: dict[Bottleneck, tuple[HypothesisCause, ...]] = {
    "compute": ("compute", "recomputation", "slow_device"),
    "memory": ("memory_bound_kernels", "out_of_memory"),
    "communication": (
        *("exposed_tp", "exposed_cp", "exposed_ep", "exposed_dp", "exposed_pp"),
        *("slow_link", "small_messages"),
    ),
    "pipeline": ("bubble", "imbalance"),
    "host": ("late_host", "cpu_binding", *get_args(HostCause), "trace_mismatch"),
}
BOTTLENECK_OF = {cause: bottleneck for bottleneck, causes in CAUSES_OF.items() for cause in causes}
LEVER_OF: dict[HypothesisCause, str] = {
    **{cause: text.lever for cause, text in TRACE_CAUSES.items()},
    "out_of_memory": "memory: more sharding or recomputation",
}
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
    "host_and_other": "late_host",
}
MIN_SHARE = 0.02
"""Share of the step: a cause that costs less is not worth testing."""
COMPETING_SHARE = 0.5
"""Share of the costliest cause's cost: what is below cannot be the main thing to change."""


class Hypothesis(ClosedModel):
    """A cause of the closed list, what it costs, and where that stands."""

    cause: HypothesisCause
    source: Literal["model", "profile", "trial"]
    seconds: float | None = None
    """Cost per step; None if the evidence does not say."""
    share: float | None = None
    """Share of the step."""
    summary: str = Field(alias="says")
    predicts: str = ""
    """What would be seen if it holds."""
    status: HypothesisStatus = "open"
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


def predicted_hypotheses(prediction: Prediction, unfit: str | None = None) -> list[Hypothesis]:
    """Every term of the predicted step that costs enough, the dearest first, after what does not fit;
    `unfit` is why the plan is not expected to run (`Workload.why_unfit`)."""
    whole, terms_of = prediction.step_time_s, dict[HypothesisCause, list[str]]()
    for term in prediction.breakdown_s:
        terms_of.setdefault(CAUSE_OF_TERM[term], []).append(term)
    costs = {cause: sum(prediction.breakdown_s[term] for term in terms) for cause, terms in terms_of.items()}
    made = []
    if unfit is not None:
        says = f"the plan {unfit}"
        evidence = [Evidence(kind="model", ref="memory_gib", says=says)]
        predicts = "the job does not start"
        made.append(
            Hypothesis(
                cause="out_of_memory", source="model", summary=says, evidence=evidence, predicts=predicts
            )
        )
    for cause, seconds in sorted(costs.items(), key=lambda item: -item[1]):
        share = seconds / whole
        if seconds < MIN_SHARE * whole:
            continue
        phrase = " and ".join(STEP_TERMS[term].phrase for term in terms_of[cause])
        says = f"{phrase}: {seconds:.3g} s, {share:.0%} of the predicted step"
        made.append(
            Hypothesis(
                cause=cause,
                source="model",
                seconds=seconds,
                share=share,
                summary=says,
                predicts=f"a profile shows {share:.0%} of the step in {phrase}",
                evidence=[
                    Evidence(kind="model", ref=f"breakdown_s.{term}", says=says) for term in terms_of[cause]
                ],
            )
        )
    return made


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
            summary=finding.summary,
            evidence=[Evidence(kind="profile", ref=item.ref, says=item.summary) for item in finding.evidence],
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


def accepted(hypotheses: Sequence[Hypothesis], cause: HypothesisCause, by: str) -> list[Hypothesis]:
    """The same list, with the cause that counts first and marked as supported."""
    chosen = next(h for h in competing(hypotheses) if h.cause == cause)
    update = {"status": "supported", "by": by}
    return [chosen.model_copy(update=update), *(h for h in hypotheses if h is not chosen)]
