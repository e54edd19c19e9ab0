"""What every kind of job has: its states, the workers that run it, and the webhooks it causes."""

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from service.db.tables import Id, JsonColumn, key, metadata, optional, parent_key, required
from service.strict_json import JsonObject

QUEUED: Final = "queued"
RUNNING: Final = "running"
COMPLETED: Final = "completed"
FAILED: Final = "failed"
CANCELLED: Final = "cancelled"
BUSY = (QUEUED, RUNNING)
"""A worker runs it, or will run it."""
TERMINAL = (COMPLETED, FAILED, CANCELLED)
"""Nothing happens any more without a retry or a decision."""

workers = sa.Table(
    "workers",
    metadata,
    *key(sa.Text, "id"),
    *required(sa.Text, "host"),
    *required(sa.Integer, "pid"),
    *required(sa.Double, "started_at", "heard_at"),
)

deliveries = sa.Table(
    "deliveries",
    metadata,
    *key(Id, "id"),
    parent_key("sessions", "session_id"),
    *required(sa.Text, "tenant", "url"),
    *required(JsonColumn, "body"),
    *required(sa.Double, "created_at"),
    *required(sa.Integer, "attempts"),
    *optional(sa.Double, "due_at", "delivered_at"),
    *optional(sa.Text, "answer"),
    sa.Index("deliveries_due", "due_at"),
    sa.Index("deliveries_by_session", "session_id"),
)


@dataclass(frozen=True)
class WorkerRow:
    id: str
    host: str
    pid: int
    started_at: float
    heard_at: float


@dataclass(frozen=True)
class WebhookDelivery:
    """One message to one receiver, as its sender takes it."""

    id: str
    session_id: str
    url: str
    body: JsonObject
    attempts: int
    tenant: str
