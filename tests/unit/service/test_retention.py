"""What expires, for whom, and that a dry run says what goes."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.access.store import list_audit, record
from service.db.engine import Database, open_database
from service.retention import delete_expired, find_expired
from service.sessions.event_store import events_after, insert_events
from service.sessions.model import SessionRow, sessions
from service.sessions.store import create_session, list_cleanups, list_sessions
from service.settings import DAY_S, Settings
from service.traces.store import create_trace

NOW_S = time.time()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    server = None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    url = Settings(data_dir=tmp_path, database_url=server, _env_file=None).database
    with closing(open_database(url)) as opened:
        opened.upgrade()
        yield opened


def make(conn: sa.Connection, tenant: str, state: str, age_days: float) -> str:
    at = NOW_S - age_days * DAY_S
    row = SessionRow(
        tenant=tenant, state=state, created_at=at, finished_at=at, report={"verdict": "x" * 5000}
    )
    create_session(conn, row)
    insert_events(
        conn, row.id, [{"key": "a", "at": at, "node": "verify", "kind": "finished", "seconds": 1.0}]
    )
    return row.id


def test_a_dry_run_says_what_goes_and_nothing_else_goes(database: Database) -> None:
    settings = Settings(
        session_days=100, detail_days=10, audit_days=50, _env_file=None,
        tenant_days=(("b", "sessions", 365), ("b", "audit", 5)),
    )  # fmt: skip
    with database.begin() as conn:
        old, middle, new = (make(conn, "a", "completed", age) for age in (101, 99, 1))
        waits = make(conn, "a", "waiting_approval", 500)
        kept = make(conn, "b", "failed", 101)
        conn.execute(sa.text("UPDATE sessions SET finished_at = NULL WHERE id = :id"), {"id": waits})
        for tenant in "ab":
            record(conn, tenant, "x", "session.cancel", "t")
        conn.execute(sa.text("UPDATE audit SET at = :at"), {"at": NOW_S - 20 * DAY_S})
        create_trace(conn, "b", "x", "run", -3 * DAY_S)
    with database.read() as conn:
        found = find_expired(settings, conn, NOW_S)
    assert {(each.tenant, each.kind): (each.days, each.count) for each in found} == {
        ("a", "sessions"): (100, 1), ("a", "details"): (10, 2), ("b", "details"): (10, 1),
        ("b", "audit"): (5, 1), ("b", "traces"): (30, 1),
    }  # fmt: skip
    assert delete_expired(settings, database, NOW_S) == 1 + 1 + 1 + 1  # a session's details go with it
    with database.read() as conn:
        assert {row.id for row in list_sessions(conn, "a")[0]} == {middle, new, waits}
        kinds = {id: {event.kind for event in events_after(conn, id, 0)} for id in (middle, new, waits, kept)}
        gone, whole = {"state"}, {"state", "finished"}
        assert kinds == {middle: gone, kept: gone, new: whole, waits: whole}
        assert {cleanup.session_id for cleanup in list_cleanups(conn)} == {old, middle, kept}
        assert [row.action for row in list_audit(conn, "b")[0]] == ["audit.expire", "details.expire"]
        assert [each for each in find_expired(settings, conn, NOW_S) if each.kind != "traces"] == []
        report = conn.execute(sa.select(sessions.c.report).where(sessions.c.id == middle)).scalar_one()
    assert report == {"verdict": "x" * 5000}
    assert delete_expired(settings, database, NOW_S) == 0


def test_without_settings_nothing_but_traces_expires(database: Database) -> None:
    with database.begin() as conn:
        make(conn, "", "completed", 5000)
        assert find_expired(Settings(_env_file=None), conn, NOW_S) == []
    assert delete_expired(Settings(_env_file=None), database, NOW_S) == 0


def test_a_report_is_stored_compressed(database: Database) -> None:
    with database.begin() as conn:
        make(conn, "", "completed", 1)
        assert conn.scalar(sa.text("SELECT length(report) FROM sessions")) < 100
