"""Revision 0003: runs of clusters, reported to calibrate predictions."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "measurements",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("reported_by", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("undone_at", sa.Double()),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("run", sa.JSON(none_as_null=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("measurements_by_cluster", "measurements", ["tenant", "cluster", "version"])
