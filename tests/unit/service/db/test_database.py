"""The schema: created by migrations alone, by several processes at once; and the lock of a data folder."""

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from service.db.engine import (
    PING_AFTER_S,
    BusyFolderError,
    Database,
    lock_for_work,
    open_database,
    upgrade_lock,
)
from service.db.models import metadata
from service.db.sessions import NewSession, create_session, list_sessions
from service.errors import NewerDatabaseError
from service.settings import Settings
from tests.unit.service.db.making import make, take
from tools.errors import InputError


def test_the_migrations_make_the_tables_that_the_code_describes(database: Database) -> None:
    with database.begin() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert database.is_current()


def test_an_upgrade_of_a_current_database_keeps_its_data(url: str) -> None:
    database = open_database(url)
    assert not database.is_current()
    database.upgrade()
    id = make(database)
    database.upgrade()
    assert database.is_current()
    assert take(database, id).fence == 1
    database.close()


def test_a_database_of_a_newer_version_is_refused_in_one_clear_line(database: Database) -> None:
    with database.begin() as conn:
        conn.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(NewerDatabaseError) as caught:
        database.upgrade()
    assert "revision 9999" in str(caught.value)
    assert "install the newer version" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not database.is_current()


def upgrade(url: str) -> None:
    database = open_database(url)
    database.upgrade()
    database.close()


def test_several_processes_may_upgrade_at_once(url: str) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=upgrade, args=(url,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    database = open_database(url)
    assert database.is_current()
    database.close()


def test_the_same_key_from_many_threads_makes_one_session(database: Database) -> None:
    def create(_: int) -> tuple[str, bool]:
        with database.begin() as conn:
            row, created = create_session(conn, NewSession(request={"notes": "x"}, idempotency_key="k"))
        return row.id, created

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(create, range(16)))
    assert len({id for id, _ in made}) == 1
    assert sum(created for _, created in made) == 1


def test_readers_do_not_wait_for_a_writer(database: Database) -> None:
    make(database)
    with database.begin() as writer:
        create_session(writer, NewSession(request={}))
        with database.read() as reader:
            rows, _ = list_sessions(reader, "")
    assert len(rows) == 1


def is_flushed(conn: sa.Connection) -> bool:
    """On PostgreSQL: as the server is set up, and not changed by us."""
    if conn.dialect.name == "sqlite":
        return bool(conn.scalar(sa.text("PRAGMA synchronous")) == 2)  # FULL
    source = "SELECT source FROM pg_settings WHERE name = 'synchronous_commit'"
    return bool(conn.scalar(sa.text(source)) != "session")


def test_only_what_may_be_lost_in_a_power_failure_is_not_flushed(database: Database) -> None:
    for flush in (True, False, True):
        with database.begin(flush) as conn:
            assert is_flushed(conn) == flush


def test_one_at_a_time_prepares(database: Database) -> None:
    inside: list[int] = []
    most: list[int] = []

    def prepare(number: int) -> None:
        with database.alone():
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.05)
            inside.remove(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(prepare, range(4)))
    assert len(most) == 4
    assert database.is_sqlite or max(most) == 1


def backend_of(database: Database) -> int:
    with database.read() as conn:
        return int(conn.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_connection_that_broke_while_it_rested_is_replaced(database: Database, url: str) -> None:
    broken, other = backend_of(database), open_database(url)
    with other.begin() as conn:
        conn.execute(sa.text("SELECT pg_terminate_backend(:pid, 10000)"), {"pid": broken})
    other.close()
    time.sleep(PING_AFTER_S)
    assert backend_of(database) != broken


def test_a_second_worker_of_one_folder_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with lock_for_work(settings), pytest.raises(BusyFolderError, match="another process runs the sessions"):
        lock_for_work(settings)
    lock_for_work(settings).close()


def test_a_data_folder_that_cannot_be_written_is_named_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(data_dir=tmp_path / "file" / "data")
    with (
        pytest.raises(InputError, match=r"ASAP_DATA_DIR.*may write .Not a directory"),
        upgrade_lock(settings),
    ):
        pass
