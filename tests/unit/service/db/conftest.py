"""Every test of the store runs on both databases."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db.engine import Database, open_database
from service.settings import Settings


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    server = None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    return Settings(data_dir=tmp_path, database_url=server, _env_file=None).database


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = open_database(url)
    opened.upgrade()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def shared_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """For property tests, whose examples each bring a tenant of their own."""
    opened = open_database(f"sqlite:///{tmp_path_factory.mktemp('shared') / 'asap.db'}")
    opened.upgrade()
    yield opened
    opened.close()
