"""The database, SQLite or PostgreSQL: connections, schema upgrades, paging, locks on the data folder, retry
on outages.
"""

import fcntl
import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec
import psycopg
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

from service.db import migrations
from service.db.models import is_id
from service.errors import NewerDatabaseError
from service.settings import Settings, make_data_folder
from tools.errors import AsapError, InputError

POOL = 10
OVERFLOW = 10
"""Threads that find none free wait. With 8 of the queue and 4 of the checkpoints a worker has at most 32: an
API and two workers stay below PostgreSQL's usual 100 connections, however many sessions they run."""
BUSY_MS = 30_000
UPGRADE_LOCK = 0x41534150
"""Any number that nobody else uses for an advisory lock in this database: "ASAP"."""
PREPARE_LOCK = UPGRADE_LOCK + 2
PING_AFTER_S = 0.2
RETURNED_AT = "asap_returned_at"
READING = "asap_reading"
UNFLUSHED = "asap_unflushed"
WAL_TRIES = 50


class Database:
    """An engine, and how to begin with it."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        # On PostgreSQL each statement by itself, which spares the round trip of a commit. Several see no less
        # than in a transaction: there too each sees what is committed when it begins.
        alone = {} if self.is_sqlite else {"isolation_level": "AUTOCOMMIT"}
        self._reading = engine.execution_options(**{READING: True}, **alone)
        self._unflushed = engine.execution_options(**{UNFLUSHED: True})

    @property
    def is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    @contextmanager
    def begin(self, flush: bool = True) -> Iterator[sa.Connection]:
        """A transaction that may write; it is rolled back if the block raises.

        Without `flush` it is left to the next commit to force it to the disk: it outlives the process, but
        perhaps not a power failure of the database's machine, which then loses what came after it too. A
        commit costs milliseconds otherwise, and a session emits 50 events.
        """
        with (self.engine if flush else self._unflushed).begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Only reads, and waits for no lock."""
        with self._reading.begin() as connection:
            yield connection

    def upgrade(self) -> None:
        """To the last version of the schema; where several processes start at once, one does it.

        Raises NewerDatabaseError if a newer version of the program has upgraded it further.
        """
        with self.engine.begin() as connection:
            if not self.is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(UPGRADE_LOCK)))
            _check_known(_find_revision(connection))
            command.upgrade(_alembic(connection), "head")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For a preparation that is not ours to lock: one process at a time is in such a block.

        Polled: a session that waited inside PostgreSQL would block the other's index builds.
        SQLite has one worker, and no other process prepares anything.
        """
        if self.is_sqlite:
            yield
            return
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            while not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(PREPARE_LOCK))):
                time.sleep(0.1)
            try:
                yield
            finally:
                connection.execute(sa.select(sa.func.pg_advisory_unlock(PREPARE_LOCK)))

    def is_current(self) -> bool:
        """Whether the schema is the one this code was written for."""
        with self.read() as connection:
            return _find_revision(connection) == _steps().get_current_head()

    def close(self) -> None:
        self.engine.dispose()


def open_database(url: str) -> Database:
    """`Settings.database` has the address. Connects when first used."""
    try:
        engine = sa.create_engine(
            url,
            pool_size=POOL,
            max_overflow=OVERFLOW,
            json_serializer=_json,
            json_deserializer=msgspec.json.decode,
        )
    except (sa.exc.ArgumentError, ValueError):
        # Without the address, which may hold a password.
        allowed = "must be postgresql://user:password@host:port/name"
        raise InputError("ASAP_DATABASE_URL", "no address of a database", allowed) from None
    _ping_idle(engine)
    if engine.dialect.name == "sqlite":
        make_data_folder(Path(engine.url.database or "").parent)
        sa.event.listen(engine, "connect", _prepare)
        sa.event.listen(engine, "begin", _begin_on_sqlite)
    else:
        sa.event.listen(engine, "begin", _begin_on_postgres)
    return Database(engine)


def _ping_idle(engine: sa.Engine) -> None:
    """As `pool_pre_ping`, but only for connections that were idle: a session would ping a hundred times."""

    def returned(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info[RETURNED_AT] = time.monotonic()

    def taken(connection: DBAPIConnection, record: ConnectionPoolEntry, _proxy: object) -> None:
        if time.monotonic() - record.info.get(RETURNED_AT, math.inf) < PING_AFTER_S:  # or new
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise sa.exc.InvalidatePoolError("the connection was lost while it was idle") from error

    sa.event.listen(engine, "checkin", returned)
    sa.event.listen(engine, "checkout", taken)


def _begin_on_postgres(connection: sa.Connection) -> None:
    if connection.get_execution_options().get(UNFLUSHED, False):
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")


def _prepare(connection: sqlite3.Connection, _record: object) -> None:
    """SQLAlchemy's recipe to keep sqlite3 from beginning transactions of its own accord."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    connection.execute("PRAGMA foreign_keys=ON")
    _turn_wal_on(connection)


def _turn_wal_on(connection: sqlite3.Connection) -> None:
    """Two processes that do this to a new file at once get "locked" in spite of the busy timeout."""
    for remaining in reversed(range(WAL_TRIES)):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if not remaining:
                raise
            time.sleep(0.1)


def _begin_on_sqlite(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    if options.get(READING, False):
        connection.exec_driver_sql("BEGIN")
        return
    connection.exec_driver_sql(f"PRAGMA synchronous={'NORMAL' if options.get(UNFLUSHED, False) else 'FULL'}")
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _json(value: object) -> str:
    """Writes what PostgreSQL accepts: not-a-number and infinity become null."""
    return msgspec.json.encode(value).decode()


def _find_revision(connection: sa.Connection) -> str | None:
    """Of the schema as it is; nothing in an empty database."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return version


def _check_known(revision: str | None) -> None:
    steps = _steps()
    if revision is not None and revision not in {step.revision for step in steps.walk_revisions()}:
        raise NewerDatabaseError(revision, str(steps.get_current_head()))


def _steps() -> ScriptDirectory:
    return ScriptDirectory.from_config(_alembic())


def _alembic(connection: sa.Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


MAX_ROWS = 500


def insert_into(conn: sa.Connection, table: sa.Table) -> postgresql.Insert | sqlite.Insert:
    """With `on_conflict_do_nothing` and `on_conflict_do_update`, which each dialect has for itself."""
    return postgresql.insert(table) if conn.dialect.name == "postgresql" else sqlite.insert(table)


def read_page(
    conn: sa.Connection,
    query: sa.Select[*tuple[Any, ...]],
    id: sa.Column[Any],
    cursor: str | None,
    limit: int,
) -> tuple[list[sa.Row[*tuple[Any, ...]]], str | None]:
    """Newest first, with the cursor of the next page: rows that arrive in between shift nothing."""
    if cursor is not None:
        if not is_id(cursor):
            raise InputError("cursor", cursor, "allowed: next_cursor of an earlier page")
        query = query.where(id < cursor)
    limit = max(1, min(limit, MAX_ROWS))
    selected = conn.execute(query.order_by(id.desc()).limit(limit + 1)).all()
    rows = list(selected[:limit])
    return rows, rows[-1].id if len(selected) > limit else None


WORKER_FILE = "worker.lock"
UPGRADE_FILE = "upgrade.lock"


class BusyFolderError(AsapError):
    """Another process works in this data folder."""


def upgrade_lock(settings: Settings) -> AbstractContextManager[None]:
    """PostgreSQL needs none: there the upgrades lock each other out in the database."""
    return nullcontext() if settings.database_url else _waiting_for(settings.data_dir)


@contextmanager
def _waiting_for(folder: Path) -> Iterator[None]:
    with (make_data_folder(folder) / UPGRADE_FILE).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def lock_for_work(settings: Settings) -> IO[str]:
    """With SQLite one process runs sessions, so whatever it finds started belongs to a process that died."""
    file = (make_data_folder(settings.data_dir) / WORKER_FILE).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise BusyFolderError(
            f"another process runs the sessions of {settings.data_dir}; stop it, give this one another "
            "ASAP_DATA_DIR, or share PostgreSQL by ASAP_DATABASE_URL"
        ) from None
    return file


T = TypeVar("T")
FIRST_WAIT_S = 0.1
MAX_WAIT_S = 2.0
CONNECTION_ERRORS = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.TimeoutError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    sqlite3.OperationalError,
)
"""The checkpointer speaks to the driver directly, everything else through SQLAlchemy."""

_log = logging.getLogger(__name__)


def is_outage(error: BaseException) -> bool:
    if _is_wrong_statement(error):
        return False
    return isinstance(error, CONNECTION_ERRORS) or (
        isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
    )


def _is_wrong_statement(error: BaseException) -> bool:
    """On SQLite a table or column that is not there is an OperationalError too."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR


def retry_transaction(
    database: Database,
    work: Callable[[sa.Connection], T],
    gives_up: Callable[[], bool] = lambda: False,
    flush: bool = True,
) -> T:
    """Runs the work in a transaction, retried while the database is unavailable: it must be idempotent."""
    wait_s = FIRST_WAIT_S
    while True:
        try:
            with database.begin(flush) as conn:
                return work(conn)
        except Exception as error:
            if not is_outage(error) or gives_up():
                raise
            _log.warning("database unavailable: %s", error)
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, MAX_WAIT_S)
