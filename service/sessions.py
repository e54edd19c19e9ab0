"""Sessions as use cases: what may be submitted, the checks before it is stored, and what is returned about
one.
"""

import re
from datetime import UTC, datetime
from typing import Any, Literal

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from graph.request import parse_request
from service.addresses import parse_target
from service.api.state import AppState
from service.auth import Caller
from service.db.models import SessionRow
from service.db.sessions import DEFAULT_PRIORITY, NewSession
from service.db.traces import COMPLETE, get_trace
from service.errors import ConflictError, NotFoundError
from service.runtime import check_tune
from service.schemas import EXAMPLE, Public, SearchCreate
from service.traces import find_reference
from tools.errors import InputError
from tools.scenario import parse_scenario
from tools.scenario.spec import refuse_unknown

MOST_LABELS = 32
LABEL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
PATH = "/v1/sessions"
State = Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"]


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


class SessionPublic(Public):
    """One optimization: submitted, run by a worker, ended."""

    id: str
    state: State
    mode: str
    approval: str
    priority: int
    labels: dict[str, str]
    owner: str = Field(description="the name of the key or token that submitted it")
    attempt: int = Field(description="1, and one more for each retry")
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    updated_at: datetime
    model: str | None
    device: str | None
    num_devices: int | None
    bottleneck: str | None = Field(description="of today's plan, when known")
    verdict: str | None = Field(description="the outcome in one sentence")
    speedup: float | None = Field(description="predicted, of the first proposal against today's plan")
    measured_speedup: float | None = Field(description="by a trial, where there was one")
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


EXTRAS = ("labels", "priority", "webhook", "budget")
"""What the service reads; the rest is the request that the agents read."""
MOST_LABEL_CHARACTERS = 200


def new_session(
    app: AppState, caller: Caller, given: SessionCreate, idempotency_key: str | None
) -> NewSession:
    """Raises InputError for the first thing that is wrong."""
    refuse_unknown(given.body(), SessionCreate.model_fields, "")
    body = {name: value for name, value in given.body().items() if name not in EXTRAS}
    request = parse_request(body, caller.knowledge_tenant)
    check_tune(app.settings, request)
    scenario = parse_scenario(request.scenario, need_plan=False)
    _check_labels(given.labels)
    _check_webhook(app, given.webhook)
    _check_traces(caller, scenario.traces)
    return NewSession(
        request=body,
        tenant=caller.tenant,
        owner=caller.name,
        mode=request.mode,
        approval=request.approval,
        priority=given.priority,
        labels=given.labels,
        model=scenario.model.name or None,
        device=scenario.cluster.device,
        num_devices=scenario.cluster.num_devices,
        budget=given.budget.model_dump(exclude_none=True) if given.budget else None,
        webhook=given.webhook,
        idempotency_key=idempotency_key,
    )


def check_upload(conn: sa.Connection, tenant: str, request: dict[str, Any]) -> None:
    """An upload must be the tenant's own, and whole."""
    id = find_reference(str(request.get("traces") or ""))
    if id is None:
        return
    try:
        trace = get_trace(conn, tenant, id)
    except NotFoundError:
        raise InputError("traces", request["traces"], "there is no such upload") from None
    if trace.state != COMPLETE:
        raise ConflictError(f"the upload {id} is {trace.state}; complete it first", field="traces")


def _check_traces(caller: Caller, traces: str | None) -> None:
    if traces is not None and find_reference(traces) is None and not caller.may("admin"):
        allowed = "trace:<id> of an upload (POST /v1/traces); a folder of the server needs the scope admin"
        raise InputError("traces", traces, allowed)


def _check_webhook(app: AppState, url: str | None) -> None:
    if url is None:
        return
    if app.settings.webhook_secret is None:
        raise InputError(
            "webhook", url, "this installation sends none: it has no ASAP_WEBHOOK_SECRET to sign with"
        )
    parse_target(url, app.settings.webhook_private)


def _check_labels(labels: dict[str, str]) -> None:
    if len(labels) > MOST_LABELS:
        raise InputError("labels", f"{len(labels)} of them", f"at most {MOST_LABELS}")
    for name, value in labels.items():
        if not re.fullmatch(LABEL_NAME, name):
            allowed = "a name has at most 63 letters, digits and . _ / -, first a letter or digit"
            raise InputError("labels", name, allowed)
        if len(value) > MOST_LABEL_CHARACTERS:
            raise InputError(f"labels.{name}", value, f"at most {MOST_LABEL_CHARACTERS} characters")
