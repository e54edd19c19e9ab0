"""Revision 0003: schedules, runs, nights and workloads."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

Json = sa.JSON(none_as_null=True)


def upgrade() -> None:
    _nights()
    _schedules()
    _runs()


def _nights() -> None:
    op.create_table(
        "nights",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("key", sa.String(64), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("recorded_at", sa.Double(), nullable=False),
        sa.Column("record", Json, nullable=False),
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
        sa.Column("outcome", Json, nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name"),
    )
    op.create_index("workloads_by_waste", "workloads", ["tenant", "wasted_device_hours_per_day"])


def _schedules() -> None:
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
        sa.Column("definition", Json, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name", name="schedules_name"),
    )
    op.create_index("schedules_by_state", "schedules", ["state"])


def _runs() -> None:
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
        sa.Column("deliveries", Json),
        sa.Column("definition", Json),
        sa.Column("report", Json),
        sa.ForeignKeyConstraint(["schedule_id"], ["schedules.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("schedule_id", "planned_at", name="night_runs_once"),
    )
    op.create_index("night_runs_by_schedule", "night_runs", ["schedule_id", "id"])
    op.create_index("night_runs_by_state", "night_runs", ["state", "updated_at"])
