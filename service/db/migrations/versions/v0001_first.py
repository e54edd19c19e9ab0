"""Revision 0001: the whole schema of the first release."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

JsonColumn = sa.JSON(none_as_null=True)


def upgrade() -> None:
    _create_sessions()
    _create_tables_of_sessions()
    _create_records()
    _create_traces()
    _create_nights()
    _create_schedules()
    _create_runs()


def _create_sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("mode", sa.String(20), nullable=False),
        sa.Column("approval", sa.String(20), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("leg", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("claims", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("model", sa.Text()),
        sa.Column("device", sa.Text()),
        sa.Column("num_devices", sa.Integer()),
        sa.Column("bottleneck", sa.Text()),
        sa.Column("verdict", sa.Text()),
        sa.Column("speedup", sa.Double()),
        sa.Column("measured_speedup", sa.Double()),
        sa.Column("search", sa.Text(), nullable=False),
        sa.Column("labels", JsonColumn, nullable=False),
        sa.Column("idempotency_key", sa.Text()),
        sa.Column("request_digest", sa.String(64), nullable=False),
        sa.Column("webhook", sa.Text()),
        sa.Column("budget", JsonColumn),
        sa.Column("error", JsonColumn),
        sa.Column("waiting_for", JsonColumn),
        sa.Column("request", JsonColumn, nullable=False),
        sa.Column("report", JsonColumn),
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
        "events",
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("seq", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("content", JsonColumn, nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", "seq"),
        sa.UniqueConstraint("session_id", "key", name="events_key"),
    )
    op.create_table(
        "decisions",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("leg", sa.Integer(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("content", JsonColumn, nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("decisions_by_session", "decisions", ["session_id", "leg"])
    op.create_table(
        "deliveries",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("body", JsonColumn, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.Double()),
        sa.Column("delivered_at", sa.Double()),
        sa.Column("answer", sa.Text()),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("deliveries_by_session", "deliveries", ["session_id"])
    op.create_index("deliveries_due", "deliveries", ["due_at"])
    op.create_table(
        "labels",
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", "name"),
    )
    op.create_index("labels_by_value", "labels", ["tenant", "name", "value", "session_id"])
    op.create_table(
        "erasures",
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("legs", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("session_id"),
    )


def _create_records() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("request_id", sa.Text()),
        sa.Column("details", JsonColumn, nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("audit_by_target", "audit", ["tenant", "target", "id"])
    op.create_index("audit_by_tenant", "audit", ["tenant", "id"])
    op.create_table(
        "keys",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("scopes", JsonColumn, nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("revoked_at", sa.Double()),
        sa.Column("used_at", sa.Double()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("heard_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _create_traces() -> None:
    op.create_table(
        "traces",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("completed_at", sa.Double()),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("error", JsonColumn),
        sa.Column("analysis", JsonColumn),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("traces_by_expiry", "traces", ["expires_at"])
    op.create_index("traces_by_tenant", "traces", ["tenant", "id"])
    op.create_table(
        "trace_files",
        sa.Column("trace_id", sa.String(32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("received_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(64)),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("trace_id", "name"),
    )


def _create_nights() -> None:
    op.create_table(
        "nights",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.Column("record", JsonColumn, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "workload", "key"),
    )
    op.create_index("nights_by_time", "nights", ["tenant", "workload", "at"])
    op.create_table(
        "workloads",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("status", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("wasted_device_hours_per_day", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("run_id", sa.String(32)),
        sa.Column("session_id", sa.String(32)),
        sa.Column("outcome", JsonColumn, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name"),
    )
    op.create_index("workloads_by_waste", "workloads", ["tenant", "wasted_device_hours_per_day"])


def _create_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("considered_until", sa.Double(), nullable=False),
        sa.Column("definition", JsonColumn, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name", name="schedules_name"),
    )
    op.create_index("schedules_by_state", "schedules", ["state"])


def _create_runs() -> None:
    op.create_table(
        "night_runs",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("schedule_id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("planned_at", sa.Double(), nullable=False),
        sa.Column("trigger", sa.String(20), nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("outcome", sa.String(20)),
        sa.Column("reason", sa.Text()),
        sa.Column("leg", sa.Integer(), nullable=False),
        sa.Column("claims", sa.Integer(), nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("worker", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("finished_at", sa.Double()),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("deliveries", JsonColumn),
        sa.Column("definition", JsonColumn),
        sa.Column("report", JsonColumn),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("schedule_id", "planned_at", name="night_runs_once"),
    )
    op.create_index("night_runs_by_schedule", "night_runs", ["schedule_id", "id"])
    op.create_index("night_runs_by_state", "night_runs", ["state", "updated_at"])
