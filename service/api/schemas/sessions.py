"""Sessions: what may be asked for, and what is told about one."""

from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from service.api.schemas.public import Public
from service.api.schemas.scenario import EXAMPLE, SearchCreate
from service.client_models import SessionFacts
from service.store.rows import SessionRow
from service.store.sessions import DEFAULT_PRIORITY

MOST_LABELS = 32
LABEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
PATH = "/v1/sessions"


class BudgetCreate(BaseModel):
    """What this session may spend; never more than the installation allows."""

    model_config = ConfigDict(extra="forbid")

    session_s: float | None = Field(None, gt=0, le=86_400, description="seconds")
    tokens: int | None = Field(None, ge=0, le=10**9, description="of the language model")
    cost: float | None = Field(None, ge=0, le=10**6, description="money for the language model")
    device_hours: float | None = Field(None, ge=0, le=10**6, description="ranks times hours of its trials")
    trials: int | None = Field(None, ge=0, le=64, description="plans it may measure, the baseline among them")


class PolicyCreate(BaseModel):
    """What trials may change where a policy approves them."""

    model_config = ConfigDict(extra="forbid")

    fields: list[str] = Field(max_length=50, description="fields of the plan; what follows from them may too")


class SessionCreate(SearchCreate):
    """The body of `asap optimize`, and how far ASAP may go with it."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {**EXAMPLE, "mode": "advise", "approval": "none", "labels": {"team": "pretraining"}},
            ]
        },
    )

    mode: Literal["advise", "tune"] | None = Field(
        None, description="tune also measures plans on the cluster"
    )
    approval: Literal["none", "person", "policy"] | None = Field(
        None,
        description="person: the session waits for a decision before anything is launched or closed; "
        "policy: trials keep to `policy` and the budget",
    )
    policy: PolicyCreate | None = Field(None, description="with approval policy: what trials may change")
    template: str | None = Field(
        None, max_length=253, description="the registered launch template of its trials; else the usual one"
    )
    labels: dict[str, str] = Field(default_factory=dict, description="at most 32, to find it again by")
    priority: int = Field(DEFAULT_PRIORITY, ge=0, le=9, description="the higher ones run first")
    webhook: str | None = Field(
        None, max_length=2000, description="told of the end, and of the wait for an approval; signed"
    )
    budget: BudgetCreate | None = None


class Links(BaseModel):
    self: str
    events: str
    report: str
    proposals: str
    cancel: str
    retry: str
    decision: str


class ErrorPublic(BaseModel):
    """Why a session failed."""

    model_config = ConfigDict(extra="allow")

    kind: str
    message: str
    field: str | None = None


class SessionPublic(SessionFacts, Public):
    """One optimization: submitted, run by a worker, ended."""

    error: ErrorPublic | None
    webhook: str | None
    budget: dict[str, Any] | None
    links: Links


class SessionDetail(SessionPublic):
    request: dict[str, Any] | None = Field(description="the scenario as it was submitted")


class SessionPage(BaseModel):
    items: list[SessionPublic]
    next_cursor: str | None = Field(description="for the page after this one; null on the last")


def public_session(row: SessionRow) -> SessionPublic:
    return SessionPublic.model_validate(_told(row))


def detailed_session(row: SessionRow) -> SessionDetail:
    return SessionDetail.model_validate({**_told(row), "request": row.request})


def _told(row: SessionRow) -> dict[str, Any]:
    own = {name: getattr(row, name) for name in SessionPublic.model_fields if hasattr(row, name)}
    times = {name: moment(own[name]) for name in ("created_at", "started_at", "finished_at", "updated_at")}
    return {**own, **times, "links": links_of(row.id)}


def links_of(id: str) -> dict[str, str]:
    own = f"{PATH}/{id}"
    parts = [name for name in Links.model_fields if name != "self"]
    return {"self": own, **{name: f"{own}/{name}" for name in parts}}


def moment(at_s: float | None) -> datetime | None:
    return None if at_s is None else datetime.fromtimestamp(at_s, UTC)
