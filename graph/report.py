"""A session's report: what leaves the graph, is stored, and is shown by every page and command.

Parsed once from the store (`Report.model_validate`) and passed on as it is.
"""

from typing import Literal

from pydantic import AliasChoices, ConfigDict, Field, JsonValue

from graph.headline import Headline
from graph.request import Decision
from tools.kb.entries import Source
from tools.model.cluster_findings import ClusterFinding
from tools.model.predict import Prediction
from tools.recommend.hypotheses import Hypothesis
from tools.recommend.report import (
    Diagnosis,
    Fact,
    MeasuredPlan,
    Notes,
    NumericsOption,
    ParetoPoint,
    PersonQuestion,
    Proposal,
    RejectedPlan,
    ScoredPlan,
    Searched,
    Sensitivity,
    Verification,
)
from tools.scenario import Plan
from tools.scenario.spec import ClosedModel
from tools.trace.report import Profile
from tools.trials.gate import Refusal
from tools.trials.order import TrialOutcome

FAILURES = {
    "out_of_memory": "ran out of memory",
    "hang": "hung and was stopped at its time limit",
    "communication_timeout": "timed out in a collective",
    "node_down": "lost a node",
    "numerics": "produced a loss that is not finite",
    "bad_configuration": "was refused by the training program",
    "cancelled": "was cancelled",
    "wall_limit": "did not finish within its time limit",
    "not_started": "was not started by the cluster in time",
    "no_budget": "was not started: the budget does not allow it",
    "unknown": "failed for a reason that its logs do not show",
}


class BaselinePlan(ClosedModel):
    """What gains are counted from, and whether it runs today or is the framework's default."""

    plan: Plan
    name: str


class Advice(ClosedModel):
    """A playbook that applies but changes no field of the plan."""

    id: str
    title: str
    do: str
    why: str
    effect: str
    risks: list[str]
    sources: list[Source]


class CaseReference(ClosedModel):
    """A past case near to this one; a refuted one is a warning."""

    id: str
    title: str
    status: Literal["confirmed", "hypothesis", "refuted"]
    warning: bool
    lesson: str
    measured: dict[str, JsonValue] | None
    sources: list[Source]


class RecipeReference(ClosedModel):
    """A plan that was tuned, measured and published for this model."""

    id: str
    title: str
    summary: str = Field(alias="says")
    same_device: bool
    proposal: int | None
    """The rank of the proposal with the same (tp, pp, cp, ep)."""
    sources: list[Source]


class IncidentDetails(ClosedModel):
    """What went wrong and what was done instead."""

    message: str = Field(validation_alias=AliasChoices("message", "says"))
    """Version 0.2 called it `says` and wrote question, tool and fallback into it."""
    questions: list[str] = Field(default_factory=list)
    """That were being answered."""
    tool: str | None = None
    """That a model had called."""
    fell_back: bool = False
    """Whether the expert rules answered instead."""
    error: str | None = None
    """The class of an error of our own; what an endpoint or a model does wrong has none."""
    place: str | None = None
    """The module and line that raised it."""

    @property
    def summary(self) -> str:
        """What a person reads in one line."""
        about = ", ".join([*self.questions, *([self.tool] if self.tool else [])])
        instead = "; the expert rules answered instead" if self.fell_back else ""
        return f"{about}: {self.message}{instead}" if about else f"{self.message}{instead}"


class Incident(IncidentDetails):
    node: str
    kind: str


class RouteStep(ClosedModel):
    step: str
    reason: str


class Usage(ClosedModel):
    tokens: int
    cost: int | float
    answered: int
    fell_back: int


class TrialPrediction(ClosedModel):
    """What the model said before the trial."""

    summary: str
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    peak_memory_gib: float


class Trial(TrialOutcome):
    """One trial of a session: the baseline first, then candidates."""

    status: Literal["measured", "failed", "cancelled", "refused"]
    role: Literal["baseline", "candidate"]
    rank: int | None
    plan: Plan
    predicted: TrialPrediction
    summary: str
    refusals: list[Refusal]
    waited_s: float
    message: str = Field(alias="says")
    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None


def failure_in_words(trial: Trial) -> str:
    kind = trial.failure.kind if trial.failure else "unknown"
    return FAILURES.get(kind, FAILURES["unknown"])


class WaitingProposal(ClosedModel):
    """A proposal that a person is asked about; the rest of it is computed again where it is shown."""

    model_config = ConfigDict(extra="ignore")

    rank: int
    plan: Plan
    speedup: float | None = None
    measured: MeasuredPlan | None = None


class PendingDecision(ClosedModel):
    """What a session waits for a person to decide; stored as JSON."""

    model_config = ConfigDict(extra="ignore")

    question: str = "which proposal?"
    bottleneck: str = ""
    proposals: list[WaitingProposal]
    trials: list[Trial] = Field(default_factory=list)
    calibration: dict[str, JsonValue] | None = None
    headline: Headline | None = None


class Stopping(ClosedModel):
    """Why the trials ended, and what they took of the budget."""

    reason: str = Field(alias="says")
    expected_gain: float | None
    noise: float | None
    device_hours: float
    trials: int
    spent_device_hours: float
    spent_trials: int


class CalibrationUse(ClosedModel):
    """Which runs of the cluster the predictions were calibrated by, and what they would be without."""

    cluster: str
    version: int
    """0 if it is from a file."""
    runs: int
    label: str = Field(alias="says")
    baseline_without_s: float | None
    proposal_without_s: float
    """Step time of the first proposal as the general model predicts it."""
    findings: tuple[ClusterFinding, ...] = ()
    """What is odd about the runs, with what to measure; the gravest first."""


class Report(ClosedModel):
    """What `asap optimize --json` prints and `GET /v1/sessions/{id}/report` returns."""

    id: str | int | float | None
    scenario: dict[str, JsonValue] | None = None
    """As understood, in the shape that every command takes; None in reports of version 0.2."""
    verdict: str
    """The headline's sentence."""
    headline: Headline | None = None
    """What every page and command shows as the result; None in reports of version 0.2."""
    explanation: str = ""
    """What a language model adds, from claims that hold."""
    first_step: str
    would_change: str
    authors: dict[str, str] = Field(default_factory=dict)
    """Who wrote each text: expert-rules, or a model by its name."""
    facts: list[Fact] = Field(default_factory=list)
    hypotheses: list[Hypothesis] = Field(default_factory=list)
    questions: list[PersonQuestion] = Field(default_factory=list)
    chosen: int | None = 1
    """The rank of the proposal that counts, as the headline has it; None: nothing is to be changed."""
    diagnosis: Diagnosis
    baseline: Prediction | None
    baseline_plan: BaselinePlan | None
    proposals: list[Proposal]
    rejected: list[RejectedPlan]
    searched: Searched
    sensitivity: list[Sensitivity]
    beyond_contract: list[NumericsOption]
    pareto: list[ParetoPoint]
    considered: list[ScoredPlan]
    advice: list[Advice]
    cases: list[CaseReference]
    recipes: list[RecipeReference] = Field(default_factory=list)
    notes: Notes | None
    profile: Profile | None
    decisions: list[Decision]
    trials: list[Trial]
    stopping: Stopping | None
    calibration: dict[str, JsonValue] | None
    calibrated_by: CalibrationUse | None = None
    """Runs of this cluster that the session began with; None: none were known."""
    verification: Verification
    incidents: list[Incident]
    route: list[RouteStep]
    usage: Usage
    case: str | None
    reasoner: str
