"""The parts of a recommendation, typed: what `optimize` returns and a session's report is made of.

They are made once, where they are computed, and passed on as they are; JSON exists only at the edges, where
summaries and messages are called `says`, as in the contract's evidence.
"""

from typing import Literal

from pydantic import Field, JsonValue

from tools.model.predict import Prediction
from tools.physics.terms import Bottleneck
from tools.scenario import Plan, Scenario
from tools.scenario.spec import ClosedModel, PlanValue
from tools.trace.causes import Cause
from tools.trace.diagnosis import ProfileDiagnosis

EvidenceKind = Literal["profile", "roofline", "model", "knowledge", "trial"]
Binding = Literal["none", "rule", "memory", "constraint", "time", "preference", "trial"]
PlanFields = dict[str, PlanValue]
"""Some fields of a plan, as a person or an agent states them."""


class Evidence(ClosedModel):
    kind: EvidenceKind
    ref: str
    says: str


class Change(ClosedModel):
    """One field of a plan, before and after."""

    field: str
    from_: PlanValue = Field(alias="from")
    to: PlanValue


def changes(before: Plan, after: Plan) -> list[Change]:
    return [
        Change(field=name, from_=plain_value(getattr(before, name)), to=plain_value(getattr(after, name)))
        for name in Plan.model_fields
        if getattr(before, name) != getattr(after, name)
    ]


def plain_value(value: PlanValue | tuple[str, ...]) -> PlanValue:
    """A list of modules as one text."""
    return ", ".join(value) if isinstance(value, tuple) else value


class CompetingCause(ClosedModel):
    """A bottleneck that deserves a look beside the first one."""

    bottleneck: Bottleneck
    source: Literal["model", "profile"]
    summary: str = Field(alias="says")


class MeasuredDiagnosis(ProfileDiagnosis):
    """What the traces of today's plan show."""

    step_time_s: float | None


class Recalibration(ClosedModel):
    """The model's step beside the measured one that it was calibrated to."""

    measured_s: float
    model_s: float
    calibrated_s: float
    summary: str = Field(alias="says")


class Diagnosis(ClosedModel):
    """What limits a plan, with the numbers, and whether sharding can help."""

    cause: Cause | None = None
    """What the traces show to be the cause; None without traces."""
    recalibrated: Recalibration | None = None
    differing_terms: list[str] = Field(default_factory=list)
    """Terms in which model and measurement differ although their totals agree."""

    bottleneck: Bottleneck
    share: float
    shares: dict[Bottleneck, float]
    evidence: list[Evidence]
    lever: str | None = None
    """Set if no plan beats today's beyond the error of a comparison."""
    profile: MeasuredDiagnosis | None = None
    competing: list[CompetingCause] = Field(default_factory=list)
    weighed: str | None = None
    """Why this cause counts and not a competing one."""


class MeasuredPlan(ClosedModel):
    """What a trial measured for a proposal."""

    step_time_s: float
    interval_s: tuple[float, float]
    noise: float
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    peak_memory_gib: float | None
    predicted_step_time_s: float
    trial: str


class Speedup(ClosedModel):
    """Against today's plan; None in a cold start."""

    speedup: float | None = None
    speedup_low: float | None = None
    speedup_high: float | None = None


class Checkpoint(ClosedModel):
    """What becomes of today's checkpoint under a proposal."""

    loads: Literal["as it is", "resharded", "converted", "unknown"]
    command: str = ""
    moved_gib: float
    """Read (and, converted, written) once: weights and optimizer state."""
    source: str


class TwoRuns(ClosedModel):
    """Today against the proposal on the cluster."""

    launch: str
    """How the framework starts today's file."""
    commands: list[str] = Field(default_factory=list)
    warmup_steps: int
    steps: int
    meaning: str


class Robustness(ClosedModel):
    """Seconds per step if things are worse than they seem, and the chance to fit a tenth less memory."""

    expected_s: float
    worst_s: float
    """The upper end of the prediction's 80% interval."""
    half_network_s: float
    slow_node_s: float
    """One node computes at 90% of its speed, and all others wait for it."""
    fits_less_memory: float


Role = Literal["recommended", "fastest", "alternative"]


class Proposal(Speedup):
    """A plan that is proposed: its prediction, what changes from today's, and why it has its place."""

    rank: int
    role: Role = "alternative"
    plan: Plan
    settings: dict[str, bool | str] = Field(default_factory=dict)
    """Switches of the framework that leave the numerics alone and differ from today's."""
    prediction: Prediction
    changes: list[Change] = Field(default_factory=list)
    why: str = ""
    """Why it has its slot, in a sentence."""
    rationale: str = ""
    evidence: list[Evidence] = Field(default_factory=list)
    risks: list[str] = Field(default_factory=list)
    measured: MeasuredPlan | None = None
    checkpoint: Checkpoint | None = None
    """None in a cold start, and for frameworks without data."""
    two_runs: TwoRuns | None = None
    robustness: Robustness | None = None

    def of(self, scenario: Scenario) -> Scenario:
        """The scenario with this plan and these settings."""
        training = scenario.training.model_copy(update=self.settings)
        return scenario.model_copy(update={"plan": self.plan, "training": training})


class JudgedPlan(ClosedModel):
    """What binds a plan, and how far it is from the best."""

    summary: str
    binding: Binding
    why: str
    step_time_s: float | None = None
    step_time_ratio: float | None = None
    peak_memory_gib: float | None = None


class RejectedPlan(JudgedPlan):
    """A plan with what speaks against it."""

    plan: Plan


class ExplainedPlan(RejectedPlan):
    """What speaks against a plan that somebody asks about, beside the best one."""

    winner: Plan = Field(description="the plan that ASAP proposes first")


class ScoredPlan(JudgedPlan):
    """A plan that the search did not find by itself (an agent's, a playbook's, an engineer's), judged."""

    plan: Plan | PlanFields = Field(union_mode="left_to_right")
    """Fields only, if they do not make a plan."""
    accepted: bool
    proposal: Proposal | None = None
    origin: str = ""
    reason: str = ""
    by_person: bool = False
    support: list[Evidence] = Field(default_factory=list)
    """References that code has checked."""


class Sensitivity(ClosedModel):
    """The best plan if the cluster is not what it seems."""

    if_: str = Field(alias="if")
    best: Plan | None
    step_time_s: float | None = None
    stays: bool
    summary: str = Field(alias="says")


class NumericsOption(ClosedModel):
    """A change that would raise throughput but changes the training itself: named, never proposed."""

    lever: str
    throughput_ratio: float
    fits: bool
    summary: str = Field(alias="says")


class ParetoPoint(ClosedModel):
    step_time_s: float
    peak_memory_gib: float
    plan: Plan


class Searched(ClosedModel):
    """How many plans were decided, how many of them timed one by one, and how long that took; whether they
    were those that people usually run or all legal ones."""

    plans: int
    timed: int
    seconds: float
    space: Literal["practice", "all"] = "practice"


class SearchResult(ClosedModel):
    """The best plans of every legal one, why not others, and what would change the answer."""

    proposals: list[Proposal]
    rejected: list[RejectedPlan]
    searched: Searched
    sensitivity: list[Sensitivity]
    beyond_contract: list[NumericsOption]
    pareto: list[ParetoPoint]


class PersonQuestion(ClosedModel):
    """What only a person can answer; nothing is changed before."""

    field: str
    text: str
    quotes: list[str] = Field(default_factory=list)
    by: str = "expert-rules"


class Recommendation(SearchResult):
    """What `optimize` returns: the search's result with what limits today's plan.

    `proposals` are at most three, best first, each with `plan`, `prediction`, `speedup` and `rationale`;
    `rejected` are notable others with what speaks against them, `pareto` the fastest plan for each memory.
    `baseline` predicts today's plan, if the scenario has one, and `diagnosis` tells what limits it.
    `sensitivity` and `beyond_contract` tell what would change the answer, `searched` how many plans were
    decided; `questions` are for a person; `id` is the scenario's, `reasoner` who reasoned.
    """

    id: str | int | float | None
    diagnosis: Diagnosis
    baseline: Prediction | None
    questions: list[PersonQuestion] = Field(default_factory=list)
    reasoner: str


class NumberFault(ClosedModel):
    """A number that does not hold, and where it is stated."""

    place: str
    message: str = Field(alias="says")


class Verification(ClosedModel):
    """How many numbers were computed a second time, and which of them differ."""

    checked: int
    faults: list[NumberFault]
    holds: bool
    texts_refused: list[str] = Field(default_factory=list)
    """What a model wrote that only code may state, and why it was not taken."""


Operator = Literal["=", "in", "not", "<=", ">=", "keep"]


class Statement(ClosedModel):
    """What a reader of the notes says they state, with the words it rests on."""

    field: str
    operator: Operator = "="
    value: JsonValue
    quote: str
    unit: str | None = None
    """As the notes wrote it; None if the value is in the field's own unit."""
    kind: str = ""
    """What it changes: constraint, override, topology or fact; follows from the field."""
    reason: str | None = None
    """Why it was refused."""

    @property
    def without_quote(self) -> tuple[str, str, str, str | None]:
        """What it says, whatever the words."""
        return self.field, self.operator, repr(self.value), self.unit


FactSource = Literal["catalogue", "notes", "profile", "trial", "person", "scenario", "runs"]


class Fact(ClosedModel):
    """Something known about the job, and from where."""

    name: str
    value: JsonValue
    unit: str | None = None
    source: FactSource
    reference: str = ""
    """The words of the notes, the file of the profile, the trial's id, what a published run is near by."""


class NoteQuestion(ClosedModel):
    """What a person must answer before a part of the notes may count."""

    field: str
    text: str
    quotes: list[str] = Field(default_factory=list)


class PlanSummary(ClosedModel):
    """A plan in one line, to stand beside another answer."""

    summary: str
    step_time_s: float
    speedup: float | None


class Notes(ClosedModel):
    accepted: list[Statement]
    refused: list[Statement]
    message: str | None = Field(alias="says")
    questions: list[NoteQuestion] = Field(default_factory=list)
    facts: list[Fact] = Field(default_factory=list)
    without: list[PlanSummary] = Field(default_factory=list)
    """The proposals if the notes said nothing; empty if they changed nothing."""
