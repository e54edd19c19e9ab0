"""What a caller may ask for, and what a person may decide: wire types that check themselves."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, WithJsonSchema, model_validator

from graph.answers import Answer, Explained, Finding, Suggestions, Worklist
from tools.errors import InputError
from tools.names import did_you_mean
from tools.recommend.choose import MAX_PROPOSALS
from tools.recommend.optimize import workload_of
from tools.recommend.report import PlanFields
from tools.scenario import Plan, Scenario
from tools.scenario.fields import NOTHING, WHOLE, Allowed, StrictModel, build, get_object, shown
from tools.scenario.parse import StatedScenario

Mode = Literal["advise", "tune"]
Approval = Literal["none", "person", "policy"]
DecisionAction = Literal["approve", "reject", "edit", "submit"]
PLAN_ACTIONS = ("edit", "submit")
"""These bring a plan, which is scored beside the others."""
MAX_COMMENT = 4000
ANSWERABLE: Mapping[str, type[Answer]] = {
    "find_cause": Finding,
    "propose_plans": Suggestions,
    "revise_worklist": Worklist,
    "explain": Explained,
}
"""Questions that a person may answer in a fork, checked as a model's answers are."""


class Budget(StrictModel):
    """What a session may spend; never more than the installation allows."""

    model_config = ConfigDict(strict=False)  # a number may be written as a text, as before

    session_s: float | None = Field(None, gt=0, le=86_400, description="seconds")
    tokens: Annotated[int, Field(ge=0, le=10**9), WHOLE] | None = Field(
        None, description="tokens of the language model"
    )
    cost: float | None = Field(None, ge=0, le=10**6, description="money for the language model")
    device_hours: float | None = Field(None, ge=0, le=10**6, description="ranks times hours of its trials")
    trials: Annotated[int, Field(ge=0, le=64), WHOLE] | None = Field(
        None, description="plans it may measure, the baseline among them"
    )


def _check_name(name: str) -> str:
    if name not in Plan.model_fields:
        raise InputError("policy.fields", name, did_you_mean(name, Plan.model_fields))
    return name


class TrialPolicy(StrictModel):
    """Which fields of the plan trials may change if a policy approves them."""

    fields: list[Annotated[str, AfterValidator(_check_name)]] | None = Field(
        None, max_length=50, description="fields of the plan; what follows from them may too; absent: any"
    )


class SessionOptions(StrictModel):
    """How far ASAP may go with a request."""

    mode: Mode = Field("advise", description="tune also measures plans on the cluster")
    approval: Approval = Field(
        "none",
        description="person: the session waits for a decision before anything is launched or closed; "
        "policy: trials keep to `policy` and the budget",
    )
    policy: TrialPolicy | None = Field(None, description="with approval policy: what trials may change")
    template: Annotated[str | None, Allowed("the name of a registered launch template")] = Field(
        None,
        min_length=1,
        max_length=253,
        description="the registered launch template of its trials; else the usual one",
    )
    budget: Budget | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, stated: object) -> object:
        """A field that is null is one that is not stated."""
        if not isinstance(stated, Mapping):
            return stated
        return {name: part for name, part in stated.items() if part is not None}

    @model_validator(mode="after")
    def _check_policy(self) -> "SessionOptions":
        if self.policy is not None and self.approval != "policy":
            given = shown(self.policy.model_dump())
            raise InputError("policy", given, 'allowed with "approval": "policy" only')
        if self.approval == "policy" and self.mode != "tune":
            raise InputError("approval", "policy", 'a policy approves trials: allowed with "mode": "tune"')
        return self


class StatedRequest(StatedScenario, SessionOptions):
    """A workload, and how far ASAP may go with it."""

    def check(self, tenant: str | None = None) -> "Request":
        """Raises InputError for the first rule that it breaks."""
        scenario = self.resolve()
        workload_of(scenario)  # refuses impossible constraints
        return Request(scenario, self, tenant)


@dataclass(frozen=True)
class Request:
    """A request that was checked, once, when it arrived."""

    scenario: Scenario
    """With the defaults of today's plan filled in."""
    options: SessionOptions = field(default_factory=SessionOptions)
    tenant: str | None = None


def parse_request(given: Mapping[str, JsonValue], tenant: str | None = None) -> Request:
    """Raises InputError for the first thing that is wrong."""
    return build(StatedRequest, get_object(given, "request")).check(tenant)


def _check_fields(plan: PlanFields) -> PlanFields:
    for name, value in plan.items():
        if name not in Plan.model_fields:
            raise InputError(f"plan.{name}", shown(value), did_you_mean(name, Plan.model_fields))
    return plan


class Decision(StrictModel):
    """Approves or rejects a proposal by its rank, edits fields of one, or submits a plan of one's own."""

    action: DecisionAction
    id: Annotated[str, Field(max_length=100)] | None = Field(
        None, description="your own; the same decision sent twice is one decision"
    )
    proposal: int = Field(1, ge=1, le=MAX_PROPOSALS, description="the rank of the proposal that is meant")
    plan: (
        Annotated[
            PlanFields,
            AfterValidator(_check_fields),
            WithJsonSchema({**Plan.model_json_schema(), "required": []}),
        ]
        | None
    ) = Field(None, description="with edit, the fields that change; with submit, those of your own plan")
    by: Annotated[str, Field(max_length=200)] | None = None
    comment: Annotated[str, Field(max_length=MAX_COMMENT)] | None = None

    @model_validator(mode="after")
    def _check_plan(self) -> "Decision":
        brings_plan = self.action in PLAN_ACTIONS
        if brings_plan and not self.plan:
            given = NOTHING if self.plan is None else shown(self.plan)
            raise InputError("plan", given, "allowed: an object with the plan's fields")
        if self.plan is not None and not brings_plan:
            raise InputError("plan", shown(self.plan), f"allowed with {' or '.join(PLAN_ACTIONS)} only")
        return self


def parse_decision(given: Mapping[str, JsonValue]) -> Decision:
    """Raises InputError for the first thing that is wrong."""
    return build(Decision, given)


class Fork(StrictModel):
    """Where another session goes on from, and what is different from there on."""

    step: int | None = Field(
        None,
        ge=1,
        description="number of an event (`seq`): the run of the agent that it belongs to is repeated, or an "
        "earlier one if what changes is read there; absent: as late as the changes allow",
    )
    notes: str | None = Field(None, description="in place of the notes; an empty text removes them")
    constraints: dict[str, JsonValue] | None = Field(None, description="in place of the constraints")
    answers: dict[str, dict[str, JsonValue]] | None = Field(
        None,
        description=f"your own answers to questions of the agents: {', '.join(ANSWERABLE)}; checked as a "
        "model's are",
    )
    decision: Decision | None = Field(
        None, description="about the proposals, in place of the one that was made"
    )

    @model_validator(mode="after")
    def _check_changes(self) -> "Fork":
        if self.step is None and not self.changed:
            raise InputError("step", None, "name an event to go on from, or something that changes")
        if self.decision and len(self.changed) > 1:
            rule = "allowed alone: whatever else changes alters the proposals that it is about"
            raise InputError("decision", self.decision.action, rule)
        for name, answer in (self.answers or {}).items():
            if name not in ANSWERABLE:
                raise InputError(f"answers.{name}", shown(answer), did_you_mean(name, ANSWERABLE))
            build(ANSWERABLE[name], answer, f"answers.{name}")
        return self

    @property
    def changed(self) -> list[str]:
        return [name for name, part in self if part is not None and name != "step"]
