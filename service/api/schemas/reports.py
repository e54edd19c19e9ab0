"""Reports, proposals and their exports, and what a person may decide about them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from graph.decisions import ACTIONS, MOST_COMMENT, MOST_PROPOSALS
from service.api.schemas.public import Public
from service.client_models import Export
from tools.scenario import Plan

Action = Annotated[Any, WithJsonSchema({"type": "string", "enum": list(ACTIONS)})]
_FIELDS = {**Plan.model_json_schema(), "required": []}
PlanFields = Annotated[Any, WithJsonSchema({"anyOf": [_FIELDS, {"type": "null"}]})]
Rank = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST_PROPOSALS})]
Comment = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "string", "maxLength": MOST_COMMENT}, {"type": "null"}]})
]


class ProposalPublic(BaseModel):
    """A plan with its prediction, the reasons for it and the risks."""

    model_config = ConfigDict(extra="allow")

    rank: int
    plan: dict[str, Any]
    prediction: dict[str, Any]
    speedup: float | None = Field(None, description="against today's plan; null for a cold start")
    speedup_low: float | None = None
    speedup_high: float | None = None
    changes: list[dict[str, Any]] = []
    rationale: str = ""
    evidence: list[dict[str, Any]] = []
    risks: list[str] = []
    measured: dict[str, Any] | None = None


class ProposalList(BaseModel):
    items: list[ProposalPublic]


class ReportPublic(BaseModel):
    """What `asap optimize --json` prints."""

    model_config = ConfigDict(extra="allow")

    diagnosis: dict[str, Any]
    baseline: dict[str, Any] | None
    proposals: list[ProposalPublic]
    rejected: list[dict[str, Any]]
    searched: dict[str, Any]
    reasoner: str


class ExportPublic(Export, Public):
    """A configuration file of a training framework."""

    format: Literal["torchtitan", "megatron", "nemo", "deepspeed", "maxtext", "accelerate"]


class DecisionCreate(BaseModel):
    """approve or reject a proposal, edit fields of one, or submit a plan of one's own."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {"action": "approve", "proposal": 1},
                {"action": "submit", "plan": {"tp": 8, "pp": 1}, "comment": "the racks changed"},
            ]
        },
    )

    action: Action
    id: Comment = Field(None, description="of your own, at most 32 characters; sent again it changes nothing")
    proposal: Rank = Field(1, description="its rank")
    plan: PlanFields = Field(
        None, description="with edit and submit: the fields that differ from the proposal"
    )
    comment: Comment = None

    def body(self) -> dict[str, Any]:
        return self.model_dump(exclude_unset=True)
