"""The questions of the agents: what each may rest on, typed, and how much of it a model is shown."""

import math
from typing import Annotated, ClassVar

from pydantic import Field, PlainSerializer

from graph.answers import Asked, Task
from graph.report import Report, Trial
from graph.request import Decision
from graph.state import KnowledgeHit, State, TrialJudgement, Turn, WorkItem
from tools.kb import Playbook
from tools.model.predict import Prediction
from tools.recommend.hypotheses import Hypothesis, HypothesisCause
from tools.recommend.report import (
    Diagnosis,
    Fact,
    PersonQuestion,
    PlanFields,
    Proposal,
    ScoredPlan,
    Sensitivity,
)
from tools.recommend.words import short
from tools.scenario import Plan, Scenario
from tools.scenario.spec import ClosedModel

MAX_TURNS = 2
MAX_CONSIDERED = 6
MAX_PLAYBOOKS = 5
TOLD_OF_CASE = ("lesson", "measured", "device", "num_devices", "after")
ASKED_OF_REPORT = {
    "verdict", "facts", "hypotheses", "questions", "chosen", "rejected", "considered", "decisions",
    "sensitivity",
}  # fmt: skip
TOLD_OF_TRIAL = ("role", "summary", "predicted", "status", "step_time_s", "interval_s", "speedup", "message")
"""Not what a job printed."""


def _only(*fields: str) -> PlainSerializer:
    """Shows these fields of a record."""
    return PlainSerializer(lambda entry: entry and entry.model_dump(mode="json", include={*fields}))


ShownScenario = Annotated[
    Scenario, PlainSerializer(lambda scenario: scenario.model_dump(mode="json", exclude_defaults=True))
]
ShownHypothesis = Annotated[
    Hypothesis,
    PlainSerializer(
        lambda entry: {
            **entry.model_dump(mode="json", exclude={"evidence"}),
            "references": sorted(entry.references),
        }
    ),
]
ShownProposal = Annotated[
    Proposal,
    PlainSerializer(
        lambda proposal: {
            "rank": proposal.rank,
            "role": proposal.role,
            "plan": short(proposal.plan),
            "step_time_s": proposal.prediction.step_time_s,
            "speedup": proposal.speedup,
            "peak_memory_gib": proposal.prediction.peak_memory_gib,
            "references": [evidence.ref for evidence in proposal.evidence],
        }
    ),
]
WholeProposal = Annotated[
    Proposal,
    PlainSerializer(lambda proposal: {**proposal.model_dump(mode="json"), "summary": short(proposal.plan)}),
]
ShownReport = Annotated[
    Report,
    PlainSerializer(
        lambda report: {
            **report.model_dump(mode="json", include=ASKED_OF_REPORT),
            "proposals": [
                {
                    **entry.model_dump(mode="json", include={"rank", "role", "risks", "changes"}),
                    "plan": short(entry.plan),
                    "evidence": [evidence.model_dump(mode="json") for evidence in entry.evidence],
                }
                for entry in report.proposals
            ],
        }
    ),
]


class StateDigest(ClosedModel):
    """The whole state in short, with the agent's own last turns."""

    facts: list[Fact]
    hypotheses: list[ShownHypothesis]
    today: Annotated[Prediction | None, _only("step_time_s", "breakdown_s", "peak_memory_gib", "fits")]
    proposals: list[ShownProposal]
    considered: list[Annotated[ScoredPlan, _only("summary", "accepted", "binding", "why", "origin")]]
    worklist: list[WorkItem]
    decisions: list[Annotated[Decision, _only("action", "proposal")]]
    trials: list[Annotated[Trial, _only("role", "summary", "status", "step_time_s", "speedup")]]
    questions: list[PersonQuestion]
    your_last_turns: list[Turn]


def digest_of(state: State, agent: str) -> StateDigest:
    analysis, search = state.get("analysis"), state.get("search")
    return StateDigest(
        facts=state.get("facts", []),
        hypotheses=analysis.hypotheses if analysis else [],
        today=analysis.baseline if analysis else None,
        proposals=search.proposals if search else [],
        considered=search.considered[-MAX_CONSIDERED:] if search else [],
        worklist=state.get("worklist", []),
        decisions=state.get("decisions", []),
        trials=list(state.get("trials", [])),
        questions=state.get("questions", []),
        your_last_turns=[turn for turn in state.get("turns", []) if turn.agent == agent][-MAX_TURNS:],
    )


class ReadNotes(Asked):
    name: ClassVar = "read_notes"
    notes: str
    scenario: ShownScenario


class ConfirmReading(Asked):
    name: ClassVar = "confirm_reading"
    quote: str
    statement: str


class ReviseWorklist(Asked):
    name: ClassVar = "revise_worklist"
    digest: StateDigest
    options: list[Task]
    causes: tuple[HypothesisCause, ...]


class FindCause(Asked):
    """The job, its prediction with interval and waterfall, and what each cause predicts."""

    name: ClassVar = "find_cause"
    scenario: ShownScenario
    plan: Plan
    prediction: Prediction
    measured_step_s: float | None
    digest: StateDigest
    hypotheses: list[Hypothesis]
    competing: list[Hypothesis]
    """Those that may count, the default first."""
    diagnosis: Diagnosis
    to_test: str = ""


class Effect(ClosedModel):
    """What a playbook's move is predicted to bring here."""

    fields: PlanFields
    step_time_s: float
    peak_memory_gib: float
    fits: bool


class OfferedPlaybook(Playbook):
    """One whose conditions hold here."""

    moves_here: list[PlanFields]
    """Its moves as fields of the plan that they start from."""
    effects: list[Effect]
    """What the legal ones among them do; none if nobody is shown them."""

    @property
    def best_s(self) -> float:
        return min((effect.step_time_s for effect in self.effects if effect.fits), default=math.inf)


class ShownPlaybook(ClosedModel):
    """read_knowledge has the rest of its texts."""

    id: str
    title: str
    why: str
    moves: list[Effect]


def _able(playbooks: list[OfferedPlaybook]) -> list[ShownPlaybook]:
    """Those that can act here, the fastest first."""
    able = sorted((book for book in playbooks if book.best_s < math.inf), key=lambda book: book.best_s)
    return [
        ShownPlaybook(id=book.id, title=book.title, why=book.why, moves=book.effects)
        for book in able[:MAX_PLAYBOOKS]
    ]


ShownHit = Annotated[
    KnowledgeHit,
    PlainSerializer(
        lambda hit: {
            **hit.model_dump(mode="json", include={"id", "kind", "title", "status"}),
            **{name: hit.body[name] for name in TOLD_OF_CASE if hit.kind == "case" and hit.body.get(name)},
        }
    ),
]


class NearPlan(ClosedModel):
    """The best plan of a family that the prediction cannot tell from the fastest."""

    plan: PlanFields
    step_time_s: float
    behind: float
    """How far it is behind the fastest, as a share of that one's time."""
    peak_memory_gib: float
    likely_fits: float
    terms_s: dict[str, float]


class OfferedRecipe(ClosedModel):
    """A published plan by its family."""

    id: str
    title: str
    summary: str = Field(alias="says")
    same_device: bool
    tp: int
    pp: int
    cp: int
    ep: int


class ProposePlans(Asked):
    name: ClassVar = "propose_plans"
    scenario: ShownScenario
    plan: Plan
    near: list[NearPlan]
    pair_error: float
    """The error of a comparison of two predictions, as a log."""
    playbooks: Annotated[list[OfferedPlaybook], PlainSerializer(_able)]
    hits: list[ShownHit]
    recipes: list[OfferedRecipe]
    confirmed: list[tuple[str, PlanFields]]
    """Plans that were run on this device: a reference, and the fields they state."""
    digest: StateDigest


class Explain(Asked):
    name: ClassVar = "explain"
    scenario: ShownScenario
    baseline: Prediction | None
    diagnosis: Diagnosis
    proposals: list[WholeProposal]
    sensitivity: list[Sensitivity]
    trials: list[Annotated[Trial, _only(*TOLD_OF_TRIAL)]]
    trials_run: int
    others_tried: bool
    """Whether a plan other than the baseline was."""
    stopping: TrialJudgement | None
    baseline_name: str
    decision: str | None
    chosen: int | None
    """The rank of the proposal that counts; None: nothing is to be changed."""
    cause: HypothesisCause | None
    """What limits today's plan, or the first proposal in a cold start."""


class AnswerQuestion(Asked):
    name: ClassVar = "answer_question"
    question: str
    digest: ShownReport
    by_rules: str
    """What the rules worked out before anybody was asked."""
