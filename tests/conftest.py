"""What holds for every test: hypothesis judges results, never speed, since the machine may be shared, and
draws the same examples for the same code (`make test-all` draws new ones, whose finds redden nobody's
change); an error of our own in a question to a model, which a user hardly notices since the
rules answer instead, is red.

And PostgreSQL for real, for whichever test asks: one server for the whole run, one database for each test.
"""

import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.servers import empty_database, running_postgres

settings.register_profile(
    "asap", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
settings.register_profile("search", settings.get_profile("asap"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "asap"))


ONE_AT_A_TIME = ("tests/integration/launch", "tests/browser", "tests/unit/recommend", "tests/unit/search")
"""Folders whose tests share a cluster or a browser of this machine, or results that are computed once."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # noqa: ANN401 - xdist's own, untyped here
    """Where processes share the run (-n), a file stays in one of them: its fixtures are made once.

    Not by the mark xdist_group: with pytest 9.2 xdist 3.8 takes no notice of it, and says nothing.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            folder = file.rpartition("/")[0]
            return folder if folder in ONE_AT_A_TIME else file

    return ByFile(config, log)


@pytest.fixture(autouse=True)
def unexpected_errors() -> Iterator[list[str]]:
    """Those of the test; one that provokes them looks at the list and empties it."""
    logger, told = logging.getLogger("graph.answers"), _Told()
    logger.addHandler(told)
    yield told.errors
    logger.removeHandler(told)
    assert told.errors == []


class _Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.errors: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.errors.append(record.getMessage())


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """The address of a PostgreSQL that was started for this run."""
    with running_postgres() as server:
        _spare_the_disk(server.get_uri())
        yield server.get_uri()


def _spare_the_disk(address: str) -> None:
    """A test outlives a crash of its server, never one of its machine."""
    import psycopg

    with psycopg.connect(address, autocommit=True) as connection:
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            connection.execute(f"ALTER SYSTEM SET {setting} = off".encode())
        connection.execute("SELECT pg_reload_conf()")


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """An empty database of this test's own, as a setting would name it."""
    with empty_database(postgres_server) as url:
        yield url
