"""Revision 0002: labels of sessions in a table of their own."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BATCH = 1000


def upgrade() -> None:
    labels = op.create_table(
        "labels",
        sa.Column("session_id", sa.String(32), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", "name"),
    )
    op.create_index("labels_by_value", "labels", ["tenant", "name", "value", "session_id"])
    _fill(op.get_bind(), labels)


def _fill(conn: sa.Connection, labels: sa.Table) -> None:
    """Page by page: there may be a hundred thousand sessions."""
    sessions = sa.table(
        "sessions", sa.column("id", sa.String), sa.column("tenant", sa.Text), sa.column("labels", sa.JSON)
    )
    last = ""
    while page := conn.execute(
        sa.select(sessions).where(sessions.c.id > last).order_by(sessions.c.id).limit(BATCH)
    ).all():
        rows = [
            {"session_id": row.id, "tenant": row.tenant, "name": name, "value": value}
            for row in page
            for name, value in row.labels.items()
        ]
        if rows:
            conn.execute(labels.insert(), rows)
        last = page[-1].id
