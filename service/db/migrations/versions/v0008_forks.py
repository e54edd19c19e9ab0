"""Revision 0008: a session may go on from a step of another one."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("forked_from", sa.JSON(none_as_null=True)))
