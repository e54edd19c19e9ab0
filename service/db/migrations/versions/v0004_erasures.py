"""Revision 0004: deleted sessions that still need cleanup."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "erasures",
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("legs", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("session_id"),
    )
