"""Revision 0002: sessions have a name, and keep the plans that their search timed."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("name", sa.Text()))
    op.create_table(
        "searches",
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("plans", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id"),
    )
