"""Tables, session states, ids, and the row dataclasses read from them."""

import re
import secrets
import time
from dataclasses import dataclass, fields
from typing import Any, TypedDict

import sqlalchemy as sa
from sqlalchemy.types import TypeEngine

from service.strict_json import JsonObject

RANDOM_BITS = 74
PATTERN = re.compile(r"[0-9a-f]{32}")


def new_id(now_s: float | None = None) -> str:
    """48 bits of milliseconds, the version, 12 random bits, the variant, 62 random bits."""
    milliseconds = int((time.time() if now_s is None else now_s) * 1000)
    noise = secrets.randbits(RANDOM_BITS)
    high, low = noise >> 62, noise & (2**62 - 1)
    return f"{milliseconds << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low:032x}"


def is_id(text: str) -> bool:
    return PATTERN.fullmatch(text) is not None


QUEUED = "queued"
RUNNING = "running"
WAITING = "waiting_approval"
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"

STATES = (QUEUED, RUNNING, WAITING, COMPLETED, FAILED, CANCELLED)
BUSY = (QUEUED, RUNNING)
"""A worker runs it, or will run it."""
TERMINAL = (COMPLETED, FAILED, CANCELLED)
"""Nothing happens any more without a retry or a decision."""


metadata = sa.MetaData()

JsonColumn = sa.JSON(none_as_null=True)
Id = sa.String(32)
Word = sa.String(20)
Digest = sa.String(64)
Kind = TypeEngine[Any] | type[TypeEngine[Any]]


def _required(kind: Kind, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False) for name in names]


def _optional(kind: Kind, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names]


def _key(kind: Kind, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, primary_key=True, autoincrement=False) for name in names]


def _dispatch_no(column: str, key: str = "dispatch_no") -> sa.Column[Any]:
    """How many workflows were enqueued for a job; the database calls them legs."""
    return sa.Column(column, sa.Integer, key=key, nullable=False)


def _of(parent: str, name: str, primary_key: bool = False) -> sa.Column[Any]:
    """A foreign key: the row is deleted with its parent."""
    return sa.Column(
        name, sa.ForeignKey(f"{parent}.id", ondelete="CASCADE"), primary_key=primary_key, nullable=False
    )


sessions = sa.Table(
    "sessions",
    metadata,
    *_key(Id, "id"),
    *_required(sa.Text, "tenant", "owner"),
    *_required(Word, "state", "mode", "approval"),
    *_required(sa.Integer, "priority"),
    _dispatch_no("leg"),
    *_required(sa.Integer, "attempt", "fence", "claims"),
    *_optional(sa.Text, "worker"),
    *_required(sa.Boolean, "cancel_requested"),
    *_required(sa.Double, "created_at", "queued_at"),
    *_optional(sa.Double, "started_at", "finished_at"),
    *_required(sa.Double, "updated_at"),
    *_optional(sa.Text, "model", "device"),
    *_optional(sa.Integer, "num_devices"),
    *_optional(sa.Text, "bottleneck", "verdict"),
    *_optional(sa.Double, "speedup", "measured_speedup"),
    *_required(sa.Text, "search"),
    *_optional(sa.Text, "name", "remark"),
    *_required(JsonColumn, "labels"),
    *_optional(sa.Text, "idempotency_key"),
    *_required(Digest, "request_digest"),
    *_optional(sa.Text, "webhook"),
    *_optional(JsonColumn, "budget", "error", "waiting_for"),
    # Long columns last: SQLite then reads a row's short ones without following overflow pages.
    *_required(JsonColumn, "request"),
    *_optional(JsonColumn, "report"),
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
    _of("sessions", "session_id", primary_key=True),
    *_key(sa.Text, "name"),
    *_required(sa.Text, "value", "tenant"),
    sa.Index("labels_by_value", "tenant", "name", "value", "session_id"),
)

searches = sa.Table(
    "searches",
    metadata,
    _of("sessions", "session_id", primary_key=True),
    *_required(sa.LargeBinary, "plans"),
)
"""Every plan that a session's search timed, packed by tools/search/ranked.py."""

events = sa.Table(
    "events",
    metadata,
    _of("sessions", "session_id", primary_key=True),
    *_key(sa.Integer, "seq"),
    *_required(sa.Text, "key"),
    *_required(sa.Double, "at"),
    *_required(sa.Text, "node", "kind"),
    *_required(JsonColumn, "content"),
    sa.UniqueConstraint("session_id", "key", name="events_key"),
)

decisions = sa.Table(
    "decisions",
    metadata,
    *_key(Id, "id"),
    _of("sessions", "session_id"),
    *_required(sa.Integer, "attempt"),
    _dispatch_no("leg"),
    *_required(sa.Double, "at"),
    *_required(sa.Text, "by"),
    *_required(JsonColumn, "content"),
    sa.Index("decisions_by_session", "session_id", "dispatch_no"),
)

audit = sa.Table(
    "audit",
    metadata,
    *_key(Id, "id"),
    *_required(sa.Text, "tenant"),
    *_required(sa.Double, "at"),
    *_required(sa.Text, "who", "action", "target"),
    *_optional(sa.Text, "request_id"),
    *_required(JsonColumn, "details"),
    sa.Index("audit_by_tenant", "tenant", "id"),
    sa.Index("audit_by_target", "tenant", "target", "id"),
)

keys = sa.Table(
    "keys",
    metadata,
    *_key(Id, "id"),
    *_required(sa.Text, "tenant", "name"),
    *_required(Digest, "digest"),
    *_required(JsonColumn, "scopes"),
    *_required(sa.Double, "created_at"),
    *_optional(sa.Double, "expires_at", "revoked_at", "used_at"),
)

traces = sa.Table(
    "traces",
    metadata,
    *_key(Id, "id"),
    *_required(sa.Text, "tenant", "owner", "name"),
    *_required(Word, "state"),
    *_required(sa.Double, "created_at"),
    *_optional(sa.Double, "completed_at"),
    *_required(sa.Double, "expires_at"),
    *_optional(JsonColumn, "error", "analysis"),
    sa.Index("traces_by_tenant", "tenant", "id"),
    sa.Index("traces_by_expiry", "expires_at"),
)

trace_files = sa.Table(
    "trace_files",
    metadata,
    _of("traces", "trace_id", primary_key=True),
    *_key(sa.Text, "name"),
    *_required(sa.BigInteger, "received_bytes"),
    *_optional(Digest, "sha256"),
    *_required(sa.Double, "updated_at"),
)

deliveries = sa.Table(
    "deliveries",
    metadata,
    *_key(Id, "id"),
    _of("sessions", "session_id"),
    *_required(sa.Text, "tenant", "url"),
    *_required(JsonColumn, "body"),
    *_required(sa.Double, "created_at"),
    *_required(sa.Integer, "attempts"),
    *_optional(sa.Double, "due_at", "delivered_at"),
    *_optional(sa.Text, "answer"),
    sa.Index("deliveries_due", "due_at"),
    sa.Index("deliveries_by_session", "session_id"),
)

erasures = sa.Table(
    "erasures",
    metadata,
    *_key(Id, "session_id"),
    *_required(sa.Integer, "attempts"),
    _dispatch_no("legs", key="dispatches"),
)

workers = sa.Table(
    "workers",
    metadata,
    *_key(sa.Text, "id"),
    *_required(sa.Text, "host"),
    *_required(sa.Integer, "pid"),
    *_required(sa.Double, "started_at", "heard_at"),
)

nights = sa.Table(
    "nights",
    metadata,
    *_key(sa.Text, "tenant", "workload"),
    *_key(Digest, "key"),
    *_required(sa.Double, "at", "recorded_at"),
    *_required(JsonColumn, "record"),
    sa.Index("nights_by_time", "tenant", "workload", "at"),
)

workloads = sa.Table(
    "workloads",
    metadata,
    *_key(sa.Text, "tenant", "name"),
    *_required(Word, "status"),
    *_optional(sa.Text, "reason"),
    *_required(sa.Double, "wasted_device_hours_per_day", "updated_at"),
    *_optional(Id, "run_id", "session_id"),
    *_required(JsonColumn, "outcome"),
    sa.Index("workloads_by_waste", "tenant", "wasted_device_hours_per_day"),
)

schedules = sa.Table(
    "schedules",
    metadata,
    *_key(Id, "id"),
    *_required(sa.Text, "tenant", "owner", "name"),
    *_required(Word, "state"),
    *_optional(sa.Text, "reason"),
    *_required(sa.Double, "created_at", "updated_at", "considered_until"),
    *_required(JsonColumn, "definition"),
    sa.UniqueConstraint("tenant", "name", name="schedules_name"),
    sa.Index("schedules_by_state", "state"),
)

night_runs = sa.Table(
    "night_runs",
    metadata,
    *_key(Id, "id"),
    _of("schedules", "schedule_id"),
    *_required(sa.Text, "tenant"),
    *_required(sa.Double, "planned_at"),
    *_required(Word, "trigger", "state"),
    *_optional(Word, "outcome"),
    *_optional(sa.Text, "reason"),
    _dispatch_no("leg"),
    *_required(sa.Integer, "claims", "fence"),
    *_optional(sa.Text, "worker"),
    *_required(sa.Double, "created_at"),
    *_optional(sa.Double, "started_at", "finished_at"),
    *_required(sa.Double, "updated_at"),
    *_optional(JsonColumn, "deliveries", "definition", "report"),
    sa.UniqueConstraint("schedule_id", "planned_at", name="night_runs_once"),
    sa.Index("night_runs_by_schedule", "schedule_id", "id"),
    sa.Index("night_runs_by_state", "state", "updated_at"),
)


measurements = sa.Table(
    "measurements",
    metadata,
    *_key(Id, "id"),
    *_required(sa.Text, "tenant", "cluster"),
    *_required(sa.Integer, "version"),
    *_required(sa.Text, "reported_by"),
    *_required(sa.Double, "created_at"),
    *_optional(sa.Double, "undone_at"),
    *_required(Digest, "digest"),
    *_required(JsonColumn, "run"),
    sa.Index("measurements_by_cluster", "tenant", "cluster", "version"),
)
"""Runs of a cluster; those reported at once share a version, and are undone together."""


class Failure(TypedDict):
    """Why a session failed."""

    kind: str
    message: str
    field: str | None


@dataclass(frozen=True)
class SessionRow:
    """A list leaves `request` and `report` out: they are None there."""

    id: str
    tenant: str
    owner: str
    state: str
    mode: str
    approval: str
    priority: int
    dispatch_no: int
    """How many workflows were enqueued for it."""
    attempt: int
    """The graph's thread; a retry starts a new one."""
    fence: int
    """The fencing token: rises with every claim, and a write under an older one is refused."""
    claims: int
    """How often a worker began this attempt; a session that kills its workers must end."""
    worker: str | None
    cancel_requested: bool
    created_at: float
    queued_at: float
    started_at: float | None
    finished_at: float | None
    updated_at: float
    model: str | None
    device: str | None
    num_devices: int | None
    bottleneck: str | None
    verdict: str | None
    speedup: float | None
    measured_speedup: float | None
    name: str | None
    """A person's own; None shows the workload instead."""
    remark: str | None
    """What people wrote about it, for people; agents read the request's notes."""
    labels: dict[str, str]
    idempotency_key: str | None
    webhook: str | None
    budget: JsonObject | None
    error: Failure | None
    waiting_for: JsonObject | None
    """What a person is asked."""
    request: JsonObject | None = None
    report: JsonObject | None = None


@dataclass(frozen=True)
class EventRow:
    seq: int
    key: str
    at: float
    node: str
    kind: str
    content: JsonObject


UNLISTED = ("request", "report")
"""Too long for a list, and therefore the last fields."""
SESSION_COLUMNS = tuple(sessions.c[field.name] for field in fields(SessionRow))
"""In the order of the fields: `SessionRow(*row)` without looking names up."""
LISTED_COLUMNS = SESSION_COLUMNS[: -len(UNLISTED)]
