"""The database, SQLite or PostgreSQL: connections, transactions, and upgrades of the schema by Alembic."""

import logging
import math
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

# Their tables are part of the schema, whoever opens it first.
import service.access.model
import service.clusters.model
import service.jobs.model
import service.schedules.model
import service.sessions.model
import service.traces.model  # noqa: F401
from service.db import migrations
from service.db.locks import PREPARE_LOCK, UPGRADE_LOCK
from service.db.outages import is_outage
from service.db.tables import metadata
from service.errors import SchemaError
from service.settings import make_data_file
from tools.errors import InputError

POOL = 10
OVERFLOW = 10
"""Threads that find none free wait. With 8 of the queue and 4 of the checkpoints a worker has at most 32: an
API and two workers stay below PostgreSQL's usual 100 connections, however many sessions they run."""
BUSY_MS = 30_000
PING_AFTER_S = 0.2
RETURNED_AT = "asap_returned_at"
READING = "asap_reading"
UNFLUSHED = "asap_unflushed"
WAL_TRIES = 50
FIRST_WAIT_S = 0.1
MAX_WAIT_S = 2.0
T = TypeVar("T")

_log = logging.getLogger(__name__)


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

        Raises SchemaError, and changes nothing, if the tables would still not be those of the last version.
        """
        with self.engine.begin() as connection:
            if not self.is_sqlite:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(UPGRADE_LOCK)))
            revision, steps = _find_revision(connection), _steps()
            known = sorted(step.revision for step in steps.walk_revisions())
            if revision is not None and revision not in known:
                raise SchemaError(
                    f"the database has the schema revision {revision}, which this version of asap does not "
                    f"know (it knows {known[0]} to {known[-1]}): install the version that made it"
                )
            try:
                if revision is None:
                    metadata.create_all(connection)
                    command.stamp(_alembic(connection), "head")
                command.upgrade(_alembic(connection), "head")
                differences = _differences(connection)
            except sa.exc.DBAPIError as error:
                if is_outage(error):
                    raise
                differences = [str(error.orig)]
            if differences:
                first, more = differences[0].splitlines()[0], len(differences) - 1
                raise SchemaError(
                    f"the database says that its schema is revision {revision}, but it is another one: "
                    f"{first}{f' and {more} more differences' if more else ''}; nothing was changed; "
                    "restore a backup, or start on an empty database"
                )

    def is_current(self) -> bool:
        """Whether the schema is the one this code was written for."""
        with self.read() as connection:
            return _find_revision(connection) == _steps().get_current_head()

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

    def close(self) -> None:
        self.engine.dispose()


def open_database(url: str) -> Database:
    """`Settings.database` has the address. Connects when first used."""
    try:
        engine = sa.create_engine(
            url,
            pool_size=POOL,
            max_overflow=OVERFLOW,
            # Writes what PostgreSQL accepts: not-a-number and infinity become null.
            json_serializer=lambda value: msgspec.json.encode(value).decode(),
            json_deserializer=msgspec.json.decode,
        )
    except (sa.exc.ArgumentError, ValueError):
        # Without the address, which may hold a password.
        allowed = "must be postgresql://user:password@host:port/name"
        raise InputError("ASAP_DATABASE_URL", "no address of a database", allowed) from None
    _ping_idle(engine)
    if engine.dialect.name == "sqlite":
        make_data_file(Path(engine.url.database or ""))
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_on_sqlite)
    else:
        sa.event.listen(engine, "begin", _begin_on_postgres)
    return Database(engine)


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


def _prepare_sqlite(connection: sqlite3.Connection, _record: object) -> None:
    """SQLAlchemy's recipe to keep sqlite3 from beginning transactions of its own accord."""
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
    connection.execute("PRAGMA foreign_keys=ON")
    # Two processes that do this to a new file at once get "locked" in spite of the busy timeout.
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


def _begin_on_postgres(connection: sa.Connection) -> None:
    if connection.get_execution_options().get(UNFLUSHED, False):
        connection.exec_driver_sql("SET LOCAL synchronous_commit TO off")


def _find_revision(connection: sa.Connection) -> str | None:
    """The schema's revision; None in an empty database."""
    if not sa.inspect(connection).has_table("alembic_version"):
        return None
    version: str | None = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    return version


def _differences(connection: sa.Connection) -> list[str]:
    """Between the database's tables and ours; the queue's and the checkpoints' may stand beside them."""
    options = {
        "compare_type": True,
        "include_name": lambda name, kind, _: kind != "table" or name in metadata.tables,
    }
    found = compare_metadata(MigrationContext.configure(connection, opts=options), metadata)
    return [str(difference) for difference in found]


def _steps() -> ScriptDirectory:
    return ScriptDirectory.from_config(_alembic())


def _alembic(connection: sa.Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
