"""Revision 0009: what a session says in one sentence and in figures, so that a list needs no report."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("headline", sa.JSON(none_as_null=True)))
