"""The tables as they are after the last migration. Times are seconds since 1970."""

import sqlalchemy as sa

metadata = sa.MetaData()

Json = sa.JSON(none_as_null=True)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("mode", sa.String(20), nullable=False),
    sa.Column("approval", sa.String(20), nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("leg", sa.Integer, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("claims", sa.Integer, nullable=False),
    sa.Column("worker", sa.Text),
    sa.Column("cancel_requested", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("queued_at", sa.Double, nullable=False),
    sa.Column("started_at", sa.Double),
    sa.Column("finished_at", sa.Double),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("model", sa.Text),
    sa.Column("device", sa.Text),
    sa.Column("num_devices", sa.Integer),
    sa.Column("bottleneck", sa.Text),
    sa.Column("verdict", sa.Text),
    sa.Column("speedup", sa.Double),
    sa.Column("measured_speedup", sa.Double),
    sa.Column("search", sa.Text, nullable=False),
    sa.Column("labels", Json, nullable=False),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("request_digest", sa.String(64), nullable=False),
    sa.Column("webhook", sa.Text),
    sa.Column("budget", Json),
    sa.Column("error", Json),
    sa.Column("waiting_for", Json),
    # Long columns last: SQLite then reads a row's short ones without following overflow pages.
    sa.Column("request", Json, nullable=False),
    sa.Column("report", Json),
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
    sa.Column("session_id", sa.ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Index("labels_by_value", "tenant", "name", "value", "session_id"),
)

events = sa.Table(
    "events",
    metadata,
    sa.Column("session_id", sa.ForeignKey("sessions.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("content", Json, nullable=False),
    sa.UniqueConstraint("session_id", "key", name="events_key"),
)

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("session_id", sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("leg", sa.Integer, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("content", Json, nullable=False),
    sa.Index("decisions_by_session", "session_id", "leg"),
)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("request_id", sa.Text),
    sa.Column("details", Json, nullable=False),
    sa.Index("audit_by_tenant", "tenant", "id"),
    sa.Index("audit_by_target", "tenant", "target", "id"),
)

keys = sa.Table(
    "keys",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("scopes", Json, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
    sa.Column("used_at", sa.Double),
)

traces = sa.Table(
    "traces",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("completed_at", sa.Double),
    sa.Column("expires_at", sa.Double, nullable=False),
    sa.Column("error", Json),
    sa.Column("analysis", Json),
    sa.Index("traces_by_tenant", "tenant", "id"),
    sa.Index("traces_by_expiry", "expires_at"),
)

trace_files = sa.Table(
    "trace_files",
    metadata,
    sa.Column("trace_id", sa.ForeignKey("traces.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("received_bytes", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.String(64)),
    sa.Column("updated_at", sa.Double, nullable=False),
)

deliveries = sa.Table(
    "deliveries",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("session_id", sa.ForeignKey("sessions.id", ondelete="CASCADE"), nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("body", Json, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("due_at", sa.Double),
    sa.Column("delivered_at", sa.Double),
    sa.Column("answer", sa.Text),
    sa.Index("deliveries_due", "due_at"),
    sa.Index("deliveries_by_session", "session_id"),
)

erasures = sa.Table(
    "erasures",
    metadata,
    sa.Column("session_id", sa.String(32), primary_key=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("legs", sa.Integer, nullable=False),
)

workers = sa.Table(
    "workers",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("started_at", sa.Double, nullable=False),
    sa.Column("heard_at", sa.Double, nullable=False),
)

nights = sa.Table(
    "nights",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("workload", sa.Text, primary_key=True),
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("recorded_at", sa.Double, nullable=False),
    sa.Column("record", Json, nullable=False),
    sa.Index("nights_by_time", "tenant", "workload", "at"),
)

workloads = sa.Table(
    "workloads",
    metadata,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("wasted_device_hours_per_day", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("run_id", sa.String(32)),
    sa.Column("session_id", sa.String(32)),
    sa.Column("outcome", Json, nullable=False),
    sa.Index("workloads_by_waste", "tenant", "wasted_device_hours_per_day"),
)

schedules = sa.Table(
    "schedules",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("considered_until", sa.Double, nullable=False),
    sa.Column("definition", Json, nullable=False),
    sa.UniqueConstraint("tenant", "name", name="schedules_name"),
    sa.Index("schedules_by_state", "state"),
)

night_runs = sa.Table(
    "night_runs",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("schedule_id", sa.ForeignKey("schedules.id", ondelete="CASCADE"), nullable=False),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("planned_at", sa.Double, nullable=False),
    sa.Column("trigger", sa.String(20), nullable=False),
    sa.Column("state", sa.String(20), nullable=False),
    sa.Column("outcome", sa.String(20)),
    sa.Column("reason", sa.Text),
    sa.Column("leg", sa.Integer, nullable=False),
    sa.Column("claims", sa.Integer, nullable=False),
    sa.Column("fence", sa.Integer, nullable=False),
    sa.Column("worker", sa.Text),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("started_at", sa.Double),
    sa.Column("finished_at", sa.Double),
    sa.Column("updated_at", sa.Double, nullable=False),
    sa.Column("deliveries", Json),
    sa.Column("definition", Json),
    sa.Column("report", Json),
    sa.UniqueConstraint("schedule_id", "planned_at", name="night_runs_once"),
    sa.Index("night_runs_by_schedule", "schedule_id", "id"),
    sa.Index("night_runs_by_state", "state", "updated_at"),
)
