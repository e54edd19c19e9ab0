"""Plan searches outside sessions."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from service.api.schemas.reports import PlanFields
from service.api.schemas.scenario import EXAMPLE, SearchCreate


class ExplainCreate(BaseModel):
    """A workload, and the plan somebody asks about."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"scenario": EXAMPLE, "plan": {"tp": 2}}]}
    )

    scenario: SearchCreate
    plan: PlanFields = Field(description="the fields that differ from the best plan; dp follows by itself")


class ExplanationPublic(BaseModel):
    """What speaks against a plan."""

    model_config = ConfigDict(extra="allow")

    winner: dict[str, Any] = Field(description="the plan that ASAP proposes first")
    summary: str
    binding: str = Field(description="rule, memory, time, constraint, or none")
    why: str
