"""The session state: written to a checkpoint after every node, and read back typed and equal."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict, get_args, get_type_hints

from pydantic import BaseModel, Field, JsonValue

from graph.answers import KeptCall, Task
from graph.headline import Headline
from graph.report import Incident, Report, RouteStep, Trial
from graph.request import Approval, Decision, Mode, Request, TrialPolicy
from tools.kb import Playbook
from tools.model.predict import Prediction
from tools.recommend.hypotheses import Hypothesis
from tools.recommend.report import (
    Diagnosis,
    Fact,
    Notes,
    PersonQuestion,
    Proposal,
    ScoredPlan,
    SearchResult,
    Verification,
)
from tools.recommend.situation import Facts
from tools.scenario import Plan, Scenario
from tools.scenario.spec import ClosedModel
from tools.trace.report import Profile

if TYPE_CHECKING:
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer


MOVED = (("graph.report", "Decision"),)
"""Where version 0.2 kept classes that its checkpoints name; they are imported there."""


class SessionInfo(ClosedModel):
    """What does not change while a session runs, but for the plan of a cold start once it is measured."""

    id: str
    tenant: str | None = None
    started_at: float
    """Seconds since 1970."""
    plan: Plan | None = None
    """Today's, in full; in a cold start the framework's own once it is measured."""
    plan_is_default: bool = False
    mode: Mode = "advise"
    approval: Approval = "none"
    template: str | None = None
    policy: TrialPolicy | None = None


class Analysis(ClosedModel):
    """What limits a plan, and what the analysis rests on."""

    subject: Literal["today", "proposal 1"]
    plan: Plan
    prediction: Prediction
    diagnosis: Diagnosis
    hypotheses: list[Hypothesis]
    """The one that counts first."""
    facts: Facts
    profile: Profile | None
    trials_seen: int

    @property
    def baseline(self) -> Prediction | None:
        return self.prediction if self.subject == "today" else None


class KnowledgeHit(ClosedModel):
    """A playbook or a past case near to this situation."""

    id: str
    kind: str
    title: str
    status: str
    warning: bool
    score: float
    body: dict[str, JsonValue]


class Knowledge(ClosedModel):
    """Playbooks whose conditions hold, and what is nearest in meaning."""

    playbooks: list[Playbook] = Field(default_factory=list)
    hits: list[KnowledgeHit] = Field(default_factory=list)


class SessionSearch(SearchResult):
    """What the search returned, with the plans from elsewhere and their verdicts."""

    settled: list[Proposal] = Field(default_factory=list)
    """What trials have settled, if they have left no proposal."""
    considered: list[ScoredPlan] = Field(default_factory=list)
    closed: bool = False
    """Whether no further trial will be run, so that measured plans come first."""
    trials_seen: int = 0

    @property
    def ranked(self) -> list[Proposal]:
        return self.proposals or self.settled


class Texts(ClosedModel):
    """The report's prose; every figure in it was written by code."""

    headline: Headline
    explanation: str = ""
    first_step: str
    would_change: str
    rationales: list[str]
    authors: dict[str, str]
    """Who wrote each: expert-rules, or the model's name."""
    decisions_seen: int = 0
    asked: str = ""
    """A digest of what they explain: the same is not asked again."""


class WorkItem(ClosedModel):
    """One item of the coordinator's worklist, from a closed set."""

    task: Task
    about: str = ""
    constraints: dict[str, JsonValue] = Field(default_factory=dict)
    reason: str
    by: str
    status: Literal["open", "done"] = "open"


class Turn(ClosedModel):
    """What an agent last answered, so that it can go on from there."""

    agent: str
    question: str
    answer: dict[str, JsonValue]


class GivenAnswer(ClosedModel):
    """What a person who forked the session answers to a question of an agent."""

    answer: dict[str, JsonValue]
    by: str


@dataclass(frozen=True)
class ForkPoint:
    """Where a session goes on from another one's thread, and what a person answers from there on."""

    thread: str
    step: int
    """LangGraph's number of the step that is taken again; the first one begins with the request."""
    answers: Mapping[str, GivenAnswer] = field(default_factory=dict)


class KeptReply(ClosedModel):
    """A reasoner's reply as it is kept, with all that asking for it changed in the node."""

    answer: dict[str, JsonValue]
    """Empty if the rules answered: they are asked again, which costs nothing."""
    by: str
    usage: dict[str, float]
    incidents: list[Incident]
    events: int
    """The number of the last event."""


class TrialRecord(Trial):
    """A trial with what only the fair-comparison gate reads."""

    losses: list[float] = Field(default_factory=list)
    fingerprint: dict[str, JsonValue] = Field(default_factory=dict)

    @property
    def public(self) -> Trial:
        return Trial.model_validate(self.model_dump(exclude={"losses", "fingerprint"}))


class TrialJudgement(ClosedModel):
    """Whether another trial is worth it, in figures and words."""

    stop: bool
    reason: str = Field(alias="says")
    expected_gain: float | None = None
    noise: float | None = None
    trials_seen: int = 0


class Learnt(ClosedModel):
    """The case that a report names, those of trials by their number, and what had been seen then."""

    case: str | None = None
    trials: dict[int, str] = Field(default_factory=dict)
    decisions_seen: int
    trials_seen: int


def added(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """The reducer of counters."""
    return {name: old.get(name, 0) + new.get(name, 0) for name in {*old, *new}}


class State(TypedDict, total=False):
    """Nodes meet here and nowhere else. Lists and counters grow; other keys are replaced."""

    session: SessionInfo
    request: Scenario
    """The caller's scenario."""
    scenario: Scenario
    """The request with what its notes state applied, and the plan as the baseline's trial ran it."""
    notes: Notes
    facts: Annotated[list[Fact], operator.add]
    """What is known, each with its provenance."""
    analysis: Analysis
    worklist: list[WorkItem]
    item: WorkItem | None
    """What a node was sent to do besides its own work."""
    questions: Annotated[list[PersonQuestion], operator.add]
    turns: Annotated[list[Turn], operator.add]
    knowledge: Knowledge
    search: SessionSearch
    verification: Verification | None
    texts: Texts
    decisions: Annotated[list[Decision], operator.add]
    """What people decided, oldest first."""
    handled: int
    """How many of the decisions have been acted upon."""
    trials: Annotated[list[TrialRecord], operator.add]
    """What was measured, the baseline first."""
    calibration: dict[str, JsonValue]
    """What the trials made of the cost model, as `Calibration.to_data` writes it."""
    stopping: TrialJudgement
    incidents: Annotated[list[Incident], operator.add]
    route: Annotated[list[RouteStep], operator.add]
    """Every step the coordinator chose, with its reason."""
    usage: Annotated[dict[str, float], added]
    """Tokens, money, questions answered and given back to the rules, calls of tools, trials."""
    learnt: Learnt
    given: dict[str, GivenAnswer]
    """By question: answers that are used, once, in place of the reasoner's."""
    report: Report


def first_state(request: Request, id: str, now: float) -> State:
    options = request.options.model_dump(include={"mode", "approval", "template", "policy"})
    plan = request.scenario.plan
    session = SessionInfo(id=id, tenant=request.tenant, started_at=now, plan=plan, **options)
    return State(session=session, request=request.scenario)


def state_serializer() -> "JsonPlusSerializer":
    """Brings the classes of the state back from a checkpoint, and no others."""
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

    hints: list[object] = [*get_type_hints(State).values(), KeptReply, KeptCall]
    classes = [*MOVED]
    while hints:
        hint = hints.pop()
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            classes.append((hint.__module__, hint.__name__))
        hints += get_args(hint)
    return JsonPlusSerializer(allowed_msgpack_modules=classes)
