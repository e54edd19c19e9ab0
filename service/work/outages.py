"""A database that is away for a while: told apart from a mistake, and waited for."""

import logging
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg
import sqlalchemy as sa

from service.store.database import Database

T = TypeVar("T")
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 2.0
AWAY = (
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
    return isinstance(error, AWAY) or (isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated)


def _is_wrong_statement(error: BaseException) -> bool:
    """On SQLite a table or column that is not there is an OperationalError too."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    return getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR


def insist(
    database: Database,
    work: Callable[[sa.Connection], T],
    gives_up: Callable[[], bool] = lambda: False,
    flush: bool = True,
) -> T:
    """The work in a transaction, again until the database answers: it must bear to be done twice."""
    wait_s = FIRST_WAIT_S
    while True:
        try:
            with database.begin(flush) as conn:
                return work(conn)
        except Exception as error:
            if not is_outage(error) or gives_up():
                raise
            _log.warning("the database is away: %s", error)
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)
