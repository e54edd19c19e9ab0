"""Revision 0004: the whole schema of the first release; checkouts before it had three earlier steps."""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.types import TypeEngine

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None

ID, WORD, DIGEST, TEXT = sa.String(32), sa.String(20), sa.String(64), sa.Text()
INTEGER, JSON = sa.Integer(), sa.JSON(none_as_null=True)
DOUBLE: sa.Double[float] = sa.Double()


def _required(kind: TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind, nullable=False, autoincrement=False) for name in names]


def _optional(kind: TypeEngine[Any], *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, kind) for name in names]


def _goes_with(parent: str, column: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{parent}.id"], ondelete="CASCADE")


def upgrade() -> None:
    _create_sessions()
    _create_tables_of_sessions()
    _create_records()
    _create_traces()
    _create_nights()


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        *_required(ID, "id"),
        *_required(TEXT, "tenant", "owner"),
        *_required(WORD, "state", "mode", "approval"),
        *_required(INTEGER, "priority", "leg", "attempt", "fence", "claims"),
        *_optional(TEXT, "worker"),
        *_required(sa.Boolean(), "cancel_requested"),
        *_required(DOUBLE, "created_at", "queued_at"),
        *_optional(DOUBLE, "started_at", "finished_at"),
        *_required(DOUBLE, "updated_at"),
        *_optional(TEXT, "model", "device"),
        *_optional(INTEGER, "num_devices"),
        *_optional(TEXT, "bottleneck", "verdict"),
        *_optional(DOUBLE, "speedup", "measured_speedup"),
        *_required(TEXT, "search"),
        *_optional(TEXT, "name", "remark"),
        *_required(JSON, "labels"),
        *_optional(TEXT, "idempotency_key"),
        *_required(DIGEST, "request_digest"),
        *_optional(TEXT, "webhook"),
        *_optional(JSON, "budget", "error", "waiting_for"),
        *_required(JSON, "request"),
        *_optional(JSON, "report"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "idempotency_key", name="sessions_idempotency"),
    )
    op.create_index("sessions_by_device", "sessions", ["tenant", "device", "id"])
    op.create_index("sessions_by_model", "sessions", ["tenant", "model", "id"])
    op.create_index("sessions_by_state", "sessions", ["tenant", "state", "id"])
    op.create_index("sessions_by_tenant", "sessions", ["tenant", "id", "search"])
    op.create_index("sessions_unfinished", "sessions", ["state", "updated_at"])


def _create_tables_of_sessions() -> None:
    op.create_table(
        "searches",
        *_required(ID, "session_id"),
        *_required(sa.LargeBinary(), "plans"),
        _goes_with("sessions", "session_id"),
        sa.PrimaryKeyConstraint("session_id"),
    )
    op.create_table(
        "events",
        *_required(ID, "session_id"),
        *_required(INTEGER, "seq"),
        *_required(TEXT, "key"),
        *_required(DOUBLE, "at"),
        *_required(TEXT, "node", "kind"),
        *_required(JSON, "content"),
        _goes_with("sessions", "session_id"),
        sa.PrimaryKeyConstraint("session_id", "seq"),
        sa.UniqueConstraint("session_id", "key", name="events_key"),
    )
    op.create_table(
        "decisions",
        *_required(ID, "id", "session_id"),
        *_required(INTEGER, "attempt", "leg"),
        *_required(DOUBLE, "at"),
        *_required(TEXT, "by"),
        *_required(JSON, "content"),
        _goes_with("sessions", "session_id"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("decisions_by_session", "decisions", ["session_id", "leg"])
    op.create_table(
        "deliveries",
        *_required(ID, "id", "session_id"),
        *_required(TEXT, "tenant", "url"),
        *_required(JSON, "body"),
        *_required(DOUBLE, "created_at"),
        *_required(INTEGER, "attempts"),
        *_optional(DOUBLE, "due_at", "delivered_at"),
        *_optional(TEXT, "answer"),
        _goes_with("sessions", "session_id"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("deliveries_by_session", "deliveries", ["session_id"])
    op.create_index("deliveries_due", "deliveries", ["due_at"])
    op.create_table(
        "labels",
        *_required(ID, "session_id"),
        *_required(TEXT, "name", "value", "tenant"),
        _goes_with("sessions", "session_id"),
        sa.PrimaryKeyConstraint("session_id", "name"),
    )
    op.create_index("labels_by_value", "labels", ["tenant", "name", "value", "session_id"])
    op.create_table(
        "erasures",
        *_required(ID, "session_id"),
        *_required(INTEGER, "attempts", "legs"),
        sa.PrimaryKeyConstraint("session_id"),
    )


def _create_records() -> None:
    op.create_table(
        "audit",
        *_required(ID, "id"),
        *_required(TEXT, "tenant"),
        *_required(DOUBLE, "at"),
        *_required(TEXT, "who", "action", "target"),
        *_optional(TEXT, "request_id"),
        *_required(JSON, "details"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audit_by_target", "audit", ["tenant", "target", "id"])
    op.create_index("audit_by_tenant", "audit", ["tenant", "id"])
    op.create_table(
        "keys",
        *_required(ID, "id"),
        *_required(TEXT, "tenant", "name"),
        *_required(DIGEST, "digest"),
        *_required(JSON, "scopes"),
        *_required(DOUBLE, "created_at"),
        *_optional(DOUBLE, "expires_at", "revoked_at", "used_at"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "workers",
        *_required(TEXT, "id", "host"),
        *_required(INTEGER, "pid"),
        *_required(DOUBLE, "started_at", "heard_at"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "measurements",
        *_required(ID, "id"),
        *_required(TEXT, "tenant", "cluster"),
        *_required(INTEGER, "version"),
        *_required(TEXT, "reported_by"),
        *_required(DOUBLE, "created_at"),
        *_optional(DOUBLE, "undone_at"),
        *_required(DIGEST, "digest"),
        *_required(JSON, "run"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("measurements_by_cluster", "measurements", ["tenant", "cluster", "version"])


def _create_traces() -> None:
    op.create_table(
        "traces",
        *_required(ID, "id"),
        *_required(TEXT, "tenant", "owner", "name"),
        *_required(WORD, "state"),
        *_required(DOUBLE, "created_at"),
        *_optional(DOUBLE, "completed_at"),
        *_required(DOUBLE, "expires_at"),
        *_optional(JSON, "error", "analysis"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("traces_by_expiry", "traces", ["expires_at"])
    op.create_index("traces_by_tenant", "traces", ["tenant", "id"])
    op.create_table(
        "trace_files",
        *_required(ID, "trace_id"),
        *_required(TEXT, "name"),
        *_required(sa.BigInteger(), "received_bytes"),
        *_optional(DIGEST, "sha256"),
        *_required(DOUBLE, "updated_at"),
        _goes_with("traces", "trace_id"),
        sa.PrimaryKeyConstraint("trace_id", "name"),
    )


def _create_nights() -> None:
    op.create_table(
        "nights",
        *_required(TEXT, "tenant", "workload"),
        *_required(DIGEST, "key"),
        *_required(DOUBLE, "at", "recorded_at"),
        *_required(JSON, "record"),
        sa.PrimaryKeyConstraint("tenant", "workload", "key"),
    )
    op.create_index("nights_by_time", "nights", ["tenant", "workload", "at"])
    op.create_table(
        "workloads",
        *_required(TEXT, "tenant", "name"),
        *_required(WORD, "status"),
        *_optional(TEXT, "reason"),
        *_required(DOUBLE, "wasted_device_hours_per_day", "updated_at"),
        *_optional(ID, "run_id", "session_id"),
        *_required(JSON, "outcome"),
        sa.PrimaryKeyConstraint("tenant", "name"),
    )
    op.create_index("workloads_by_waste", "workloads", ["tenant", "wasted_device_hours_per_day"])
    op.create_table(
        "schedules",
        *_required(ID, "id"),
        *_required(TEXT, "tenant", "owner", "name"),
        *_required(WORD, "state"),
        *_optional(TEXT, "reason"),
        *_required(DOUBLE, "created_at", "updated_at", "considered_until"),
        *_required(JSON, "definition"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name", name="schedules_name"),
    )
    op.create_index("schedules_by_state", "schedules", ["state"])
    op.create_table(
        "night_runs",
        *_required(ID, "id", "schedule_id"),
        *_required(TEXT, "tenant"),
        *_required(DOUBLE, "planned_at"),
        *_required(WORD, "trigger", "state"),
        *_optional(WORD, "outcome"),
        *_optional(TEXT, "reason"),
        *_required(INTEGER, "leg", "claims", "fence"),
        *_optional(TEXT, "worker"),
        *_required(DOUBLE, "created_at"),
        *_optional(DOUBLE, "started_at", "finished_at"),
        *_required(DOUBLE, "updated_at"),
        *_optional(JSON, "deliveries", "definition", "report"),
        _goes_with("schedules", "schedule_id"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("schedule_id", "planned_at", name="night_runs_once"),
    )
    op.create_index("night_runs_by_schedule", "night_runs", ["schedule_id", "id"])
    op.create_index("night_runs_by_state", "night_runs", ["state", "updated_at"])
