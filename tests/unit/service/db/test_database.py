"""The schema: created by migrations alone, by several processes at once; and the lock of a data folder."""

import gzip
import hashlib
import multiprocessing
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import cast

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from service.db.engine import PING_AFTER_S, Database, _alembic, _steps, open_database
from service.db.locks import BusyFolderError, lock_for_work, upgrade_lock
from service.db.tables import metadata
from service.errors import SchemaError
from service.sessions.model import SessionRow
from service.sessions.store import create_session
from service.settings import Settings
from tests.integration.service.museum.make import MUSEUM
from tools.errors import InputError

REVISIONS = {
    "0004": "c8c1de46e599",
    "0005": "bb8f4d89e91e",
    "0006": "a2d34fe6ab90",
    "0007": "82c419913fab",
    "0008": "b0dc34288c35",
    "0009": "a3953c1cebc6",
}
"""What each has ever meant: add to them, and never change one."""


def test_the_migrations_make_the_tables_that_the_code_describes(database: Database) -> None:
    import service.app  # noqa: F401 - which imports the tables of all features

    with database.begin() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        assert compare_metadata(context, metadata) == []
    assert database.is_current()


def test_a_database_of_a_newer_version_is_refused_in_one_clear_line(database: Database) -> None:
    with database.begin() as conn:
        conn.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(SchemaError) as caught:
        database.upgrade()
    assert "revision 9999" in str(caught.value)
    assert "install the version that made it" in str(caught.value)
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
            row, created = create_session(conn, SessionRow(request={"notes": "x"}, idempotency_key="k"))
        return row.id, created

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(create, range(16)))
    assert len({id for id, _ in made}) == 1
    assert sum(created for _, created in made) == 1


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


def test_a_data_folder_that_cannot_be_written_is_named_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    settings = Settings(data_dir=tmp_path / "file" / "data")
    with (
        pytest.raises(InputError, match=r"ASAP_DATA_DIR.*may write .Not a directory"),
        upgrade_lock(settings),
    ):
        pass


def schema_of(revision: str) -> str:
    """A digest of the statements that would make the tables of this revision, in a database of 0.2."""
    engine = sa.create_engine("sqlite://")
    made_by_0_2 = gzip.decompress((MUSEUM / "0.2/sqlite/asap.sql.gz").read_bytes()).decode()
    with closing(engine.raw_connection()) as raw:
        cast("sqlite3.Connection", raw.driver_connection).executescript(made_by_0_2)
    with engine.begin() as conn:
        command.upgrade(_alembic(conn), revision)
        made = sa.MetaData()
        present = sa.inspect(conn).get_table_names()
        made.reflect(conn, only=[name for name in present if name in metadata.tables])
    statements = [str(sa.schema.CreateTable(table)) for table in made.sorted_tables]
    statements += sorted(str(sa.schema.CreateIndex(i)) for table in made.sorted_tables for i in table.indexes)
    return hashlib.sha256("".join(statements).encode()).hexdigest()[:12]


def test_a_revision_keeps_its_schema_and_a_change_gets_a_number_of_its_own() -> None:
    """0004 was given to two schemas: databases of 0.1 then opened as if they were of 0.2."""
    numbers = [step.revision for step in _steps().walk_revisions()][::-1]
    assert numbers == sorted(REVISIONS)
    assert {number: schema_of(number) for number in numbers} == REVISIONS


def test_a_second_worker_of_one_folder_is_refused_until_the_first_has_gone(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    with lock_for_work(settings), pytest.raises(BusyFolderError, match="another process runs the sessions"):
        lock_for_work(settings)
    lock_for_work(settings).close()
