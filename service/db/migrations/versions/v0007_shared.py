"""Revision 0007: what one process computed serves all: the fit of a cluster's runs by their version, and the
CPU seconds that each API process has spent for a tenant."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cluster_fits",
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("cluster", sa.Text(), primary_key=True),
        sa.Column("version", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("model", sa.String(64), nullable=False),
        sa.Column("fit", sa.JSON(none_as_null=True), nullable=False),
    )
    op.create_table(
        "computing_use",
        sa.Column("process", sa.String(32), primary_key=True),
        sa.Column("tenant", sa.Text(), primary_key=True),
        sa.Column("cpu_s", sa.Double(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
    )
