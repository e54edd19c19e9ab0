"""A database that is away is waited for; a mistake is not."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from service.db import engine
from service.db.engine import Database, open_database, retry_transaction
from service.db.outages import is_outage


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return open_database(f"sqlite:///{tmp_path / 'asap.db'}")


class Flaky:
    """Fails so many times, then succeeds."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.left, self.error, self.calls = failures, error, 0

    def __call__(self, conn: sa.Connection) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error
        return "done"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "FIRST_WAIT_S", 0.0)


def test_the_work_is_done_again_until_the_database_answers(database: Database) -> None:
    work = Flaky(3, psycopg.OperationalError("server closed the connection"))
    assert retry_transaction(database, work) == "done"
    assert work.calls == 4


def test_a_wrong_statement_is_not_an_outage() -> None:
    assert not is_outage(sa.exc.ProgrammingError("select", {}, Exception("no such table")))
    assert is_outage(sa.exc.OperationalError("select", {}, Exception("gone")))


def test_a_locked_database_is_an_outage(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    with closing(sqlite3.connect(path)) as first, closing(sqlite3.connect(path, timeout=0)) as second:
        first.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
            second.execute("BEGIN IMMEDIATE")
    assert is_outage(caught.value)
