"""Which errors mean that the database is unavailable."""

import sqlite3

import psycopg
import sqlalchemy as sa

CONNECTION_ERRORS = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.TimeoutError,
    psycopg.OperationalError,
    psycopg.InterfaceError,
    sqlite3.OperationalError,
)
"""The checkpointer speaks to the driver directly, everything else through SQLAlchemy."""


def is_outage(error: BaseException) -> bool:
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    if getattr(cause, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
        return False  # on SQLite a table or column that is not there is an OperationalError too
    return isinstance(error, CONNECTION_ERRORS) or (
        isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated
    )
