"""Sessions: one declaration that is the row, the table's columns and what the API answers.

A new stored field of a session is a field here (of SessionChoices if the caller states it) and a migration.
"""

import re
import time
import zlib
from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self, cast, get_args

import msgspec
import sqlalchemy as sa
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    ModelWrapValidatorHandler,
    PrivateAttr,
    computed_field,
    field_serializer,
    model_validator,
)

from graph.events import SessionFailure, parse_event
from graph.headline import Headline
from graph.request import Fork, StatedRequest
from service.addresses import origin_of
from service.db.ids import new_id
from service.db.tables import (
    Digest,
    Id,
    JsonColumn,
    Timestamp,
    Word,
    columns_of,
    key,
    metadata,
    parent_key,
    required,
)
from service.jobs.model import QUEUED
from service.strict_json import JsonObject
from tools.errors import InputError
from tools.scenario.parse import EXAMPLE

PATH = "/v1/sessions"
SessionState = Literal["queued", "running", "waiting_approval", "completed", "failed", "cancelled"]
STATES: tuple[SessionState, ...] = get_args(SessionState)
WAITING: Final = "waiting_approval"
DEFAULT_PRIORITY = 5
HIGHEST_PRIORITY = 9
MAX_LABELS = 32
MAX_LABEL_CHARACTERS = 200
MAX_NAME_CHARACTERS = 120
MAX_REMARK_CHARACTERS = 4000
LABEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}"


class PackedJson(sa.TypeDecorator[JsonValue]):
    """JSON, compressed: for what is long, and never searched by the database."""

    impl = sa.LargeBinary
    cache_ok = True

    def process_bind_param(self, value: JsonValue, dialect: sa.Dialect) -> bytes | None:
        return None if value is None else zlib.compress(msgspec.json.encode(value))

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> JsonValue:
        return None if value is None else cast("JsonValue", msgspec.json.decode(zlib.decompress(value)))


def check_name(name: str | None) -> str | None:
    """On one line, with single spaces; None for an empty one."""
    name = " ".join((name or "").split())
    if len(name) > MAX_NAME_CHARACTERS:
        raise InputError("name", name, f"at most {MAX_NAME_CHARACTERS} characters")
    return name or None


def check_labels(labels: dict[str, str]) -> dict[str, str]:
    if len(labels) > MAX_LABELS:
        raise InputError("labels", f"{len(labels)} labels", f"at most {MAX_LABELS}")
    for name, value in labels.items():
        if not re.fullmatch(LABEL_NAME, name):
            allowed = "a name has at most 63 letters, digits and . _ / -, and begins with a letter or digit"
            raise InputError("labels", name, allowed)
        if len(value) > MAX_LABEL_CHARACTERS:
            raise InputError(f"labels.{name}", value, f"at most {MAX_LABEL_CHARACTERS} characters")
    return labels


def check_remark(remark: str | None) -> str | None:
    if remark and len(remark) > MAX_REMARK_CHARACTERS:
        raise InputError("remark", remark, f"at most {MAX_REMARK_CHARACTERS} characters")
    return remark or None


SessionName = Annotated[str | None, AfterValidator(check_name)]
SessionLabels = Annotated[dict[str, str], AfterValidator(check_labels)]


class SessionLinks(BaseModel):
    self: str
    events: str
    report: str
    proposals: str
    cancel: str
    retry: str
    decision: str
    fork: str


class ForkedFrom(BaseModel):
    """The step of another session that this one goes on from."""

    session: str
    step: int = Field(description="number of the event that the repeated run began with")
    node: str = Field(description="the agent that runs again")
    attempt: int
    turn: int = Field(description="the graph's own number of that run")
    changed: Fork = Field(description="what was stated otherwise")


class SessionChoices(BaseModel):
    """What the service itself reads of a submission, and keeps: the rest is for the agents."""

    name: SessionName = Field(None, description="your own name for it; pages show it first")
    labels: SessionLabels = Field(default_factory=dict, description="at most 32, to find it again by")
    priority: int = Field(
        DEFAULT_PRIORITY, ge=0, le=HIGHEST_PRIORITY, strict=False, description="the higher ones run first"
    )
    webhook: str | None = Field(
        None,
        max_length=2000,
        description="notified, with a signature, when the session ends or waits for approval; read back "
        "without its path, which may hold a token",
    )


class SessionCreate(StatedRequest, SessionChoices):
    """The body of `asap optimize`, and how far ASAP may go with it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{**EXAMPLE, "mode": "advise", "approval": "none", "labels": {"team": "pretraining"}}]
        }
    )

    _stated: JsonObject = PrivateAttr(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _keep_stated(cls, stated: object, validate: ModelWrapValidatorHandler[Self]) -> Self:
        """As it was sent: a client that sends a body again must get its session, whatever release made it."""
        created = validate(stated)
        if isinstance(stated, Mapping):
            created._stated = dict(stated)
        return created

    @property
    def request(self) -> JsonObject:
        """What is for the agents, as it was stated: without what the service itself reads."""
        own = {*SessionChoices.model_fields, "budget"}
        return {name: value for name, value in self._stated.items() if name not in own}


class SessionPatch(BaseModel):
    """What people change about a session at any time; what is absent stays."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"name": "after the upgrade"}]})

    name: SessionName = Field(None, description="null or an empty one takes it away")
    labels: SessionLabels | None = Field(None, description="in place of those it has")
    remark: Annotated[str | None, AfterValidator(check_remark)] = Field(
        None, description="for people; agents read the notes of the request"
    )


class SessionRow(SessionChoices):
    """One optimization: submitted, run by a worker, ended.

    What is excluded stays in the server. A list leaves `request` and `report` out.
    """

    model_config = ConfigDict(frozen=True, json_schema_serialization_defaults_required=True)

    id: Annotated[str, Id] = Field(default_factory=new_id)
    tenant: str = Field("", exclude=True)
    owner: str = Field("", description="the name of the key or token that submitted it")
    state: Annotated[SessionState, Word] = QUEUED
    mode: Annotated[str, Word] = "advise"
    approval: Annotated[str, Word] = "none"
    dispatch_no: int = Field(1, exclude=True)
    """How many workflows were enqueued for it."""
    attempt: int = Field(1, description="1, and one more for each retry")
    """The graph's thread; a retry starts a new one."""
    fence: int = Field(0, exclude=True)
    """The fencing token: rises with every claim, and a write under an older one is refused."""
    claims: int = Field(0, exclude=True)
    """How often a worker began this attempt; a session that kills its workers must end."""
    worker: str | None = Field(None, exclude=True)
    cancel_requested: bool = False
    created_at: Timestamp = Field(default_factory=time.time)
    queued_at: Timestamp = Field(default_factory=time.time, exclude=True)
    started_at: Timestamp | None = None
    finished_at: Timestamp | None = None
    updated_at: Timestamp = Field(default_factory=time.time)
    model: str | None = None
    device: str | None = None
    num_devices: int | None = None
    bottleneck: str | None = Field(None, description="what limits today's plan, when known")
    verdict: str | None = Field(None, description="the outcome in one sentence")
    headline: Headline | None = Field(None, description="the outcome, with the figures that stand beside it")
    speedup: float | None = Field(None, description="predicted, of the proposal that counts; null: no gain")
    measured_speedup: float | None = Field(None, description="by a trial, if there was one")
    remark: str | None = Field(None, description="what people wrote about it, for people")
    idempotency_key: str | None = Field(None, exclude=True)
    budget: dict[str, int | float | None] | None = None
    """Limits that the caller wants smaller than the installation's."""
    error: SessionFailure | None = None
    forked_from: ForkedFrom | None = None
    waiting_for: JsonObject | None = Field(None, exclude=True)
    """What a person is asked."""
    request: JsonObject = Field(default_factory=dict, exclude=True)
    report: Annotated[JsonObject | None, PackedJson()] = Field(None, exclude=True)

    @field_serializer("webhook")
    def _without_token(self, webhook: str | None) -> str | None:
        """Its address may hold a token, and whoever may read sessions may not send in its name."""
        return origin_of(webhook) if webhook else None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def links(self) -> SessionLinks:
        here = f"{PATH}/{self.id}"
        parts = {name: f"{here}/{name}" for name in SessionLinks.model_fields}
        return SessionLinks(**{**parts, "self": here})


def thread_of(session_id: str, attempt: int) -> str:
    """Each attempt is a thread of the graph's own."""
    return f"{session_id}.{attempt}"


class SessionDetail(SessionRow):
    """One session, with its request."""

    request: JsonObject = Field(description="the scenario as it was submitted")


class EventRow(BaseModel):
    """Something that happened; the same object stands in `data:` of the stream."""

    model_config = ConfigDict(frozen=True)

    seq: int = Field(description="1, 2, 3, ... without a gap; the stream's `id:`")
    key: str = Field(exclude=True)
    at: Timestamp
    node: str = Field(description="the agent, or `session` for a change of its state")
    kind: str = Field(description="state, tool, reasoned, incident, ...")
    content: Annotated[JsonObject, PackedJson()]

    @computed_field(description="what a person reads in one line")  # type: ignore[prop-decorator]
    @property
    def summary(self) -> str:
        return parse_event(self.kind, self.content).line


sessions = sa.Table(
    "sessions",
    metadata,
    *columns_of(SessionRow),
    *required(sa.Text, "search"),
    *required(Digest, "request_digest"),
    sa.UniqueConstraint("tenant", "idempotency_key", name="sessions_idempotency"),
    # With the words, so that a search for them does not touch the rows.
    sa.Index("sessions_by_tenant", "tenant", "id", "search"),
    sa.Index("sessions_by_state", "tenant", "state", "id"),
    sa.Index("sessions_by_device", "tenant", "device", "id"),
    sa.Index("sessions_by_model", "tenant", "model", "id"),
    sa.Index("sessions_unfinished", "state", "updated_at"),
)

labels = sa.Table(
    "labels",
    metadata,
    parent_key("sessions", "session_id", primary_key=True),
    *key(sa.Text, "name"),
    *required(sa.Text, "value", "tenant"),
    sa.Index("labels_by_value", "tenant", "name", "value", "session_id"),
)

searches = sa.Table(
    "searches",
    metadata,
    parent_key("sessions", "session_id", primary_key=True),
    *required(sa.LargeBinary, "plans"),
)
"""Every plan that a session's search timed, packed by tools/search/ranked.py."""

events = sa.Table(
    "events",
    metadata,
    parent_key("sessions", "session_id", primary_key=True),
    *key(sa.Integer, "seq"),
    *(column for column in columns_of(EventRow) if column.name != "seq"),
    sa.UniqueConstraint("session_id", "key", name="events_key"),
)

decisions = sa.Table(
    "decisions",
    metadata,
    *key(Id, "id"),
    parent_key("sessions", "session_id"),
    *required(sa.Integer, "attempt", "dispatch_no"),
    *required(sa.Double, "at"),
    *required(sa.Text, "by"),
    *required(JsonColumn, "content"),
    sa.Index("decisions_by_session", "session_id", "dispatch_no"),
)

erasures = sa.Table(
    "erasures", metadata, *key(Id, "session_id"), *required(sa.Integer, "attempts", "dispatches")
)
"""Deleted sessions whose checkpoints and queue records are still there."""
