"""Revision 0005: databases of 0.1 get what 0.2 added, and what was called a leg is the number of a dispatch.

Revision 0004 is two schemas: 0.1 ended with a 0004 of its own before 0.2 began to number anew.
"""

import sqlalchemy as sa
from alembic import op
from pydantic import JsonValue

from graph.request import parse_request
from tools.errors import AsapError
from tools.physics.sizes import ParameterCount, count_parameters

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

BATCH = 100
JSON = sa.JSON(none_as_null=True)
ADDED_BY_0_2 = (
    "ALTER TABLE sessions ADD COLUMN name TEXT",
    "ALTER TABLE sessions ADD COLUMN remark TEXT",
    "CREATE TABLE searches (session_id VARCHAR(32) NOT NULL PRIMARY KEY, plans {blob} NOT NULL, "
    "FOREIGN KEY(session_id) REFERENCES sessions (id) ON DELETE CASCADE)",
    "CREATE TABLE measurements (id VARCHAR(32) NOT NULL PRIMARY KEY, tenant TEXT NOT NULL, "
    "cluster TEXT NOT NULL, version INTEGER NOT NULL, reported_by TEXT NOT NULL, "
    "created_at {double} NOT NULL, undone_at {double}, digest VARCHAR(64) NOT NULL, "
    "run JSON NOT NULL)",
    "CREATE INDEX measurements_by_cluster ON measurements (tenant, cluster, version)",
)


def upgrade() -> None:
    """PostgreSQL and SQLite (not Alembic's own operation) rename in place, indices and constraints too."""
    if not sa.inspect(op.get_bind()).has_table("searches"):
        is_sqlite = op.get_bind().dialect.name == "sqlite"
        blob, double = ("BLOB", "DOUBLE") if is_sqlite else ("BYTEA", "DOUBLE PRECISION")
        for statement in ADDED_BY_0_2:
            op.execute(statement.format(blob=blob, double=double))
        _complete_reports()
    for table in ("sessions", "decisions", "night_runs"):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN leg TO dispatch_no")
    op.execute("ALTER TABLE erasures RENAME COLUMN legs TO dispatches")


def _complete_reports() -> None:
    """Page by page: there may be a hundred thousand."""
    conn, last = op.get_bind(), ""
    sessions = sa.table("sessions", sa.column("id"), sa.column("request", JSON), sa.column("report", JSON))
    reported = sa.select(sessions).where(sessions.c.report.is_not(None)).order_by(sessions.c.id).limit(BATCH)
    while page := conn.execute(reported.where(sessions.c.id > last)).all():
        last = page[-1].id
        for row in page:
            try:
                sizes = count_parameters(parse_request(row.request).scenario.model)
            except AsapError:
                continue  # a request that is refused today; the API still answers its report as it is
            report = _completed(row.report, sizes)
            conn.execute(sessions.update().where(sessions.c.id == row.id).values(report=report))


def _completed(value: JsonValue, sizes: ParameterCount) -> JsonValue:
    """With what 0.2 has: 0.1 said whether a plan fits, not how likely, and counted recomputing as compute."""
    if isinstance(value, list):
        return [_completed(each, sizes) for each in value]
    if not isinstance(value, dict):
        return value
    done = {name: _completed(each, sizes) for name, each in value.items()}
    if isinstance(parts := done.get("breakdown_s"), dict) and "fits" in done:
        done["breakdown_s"] = {"recompute": 0.0, **parts}
        done["fit_probability"] = float(bool(done["fits"]))
        done |= {"parameters": sizes.total, "active_parameters": sizes.active}
    if "numbers_struck" in done:
        done["texts_refused"] = done.pop("numbers_struck")
    return done
