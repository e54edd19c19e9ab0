"""Every test of booking runs on both databases, each on a copy of one that was prepared once."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from service.db.engine import Database, open_database
from service.nightly.dispatch import NightQueue, night_queue
from service.settings import Settings
from service.worker.jobs import prepare


def _prepare(settings: Settings) -> None:
    with closing(open_database(settings.database)) as opened:
        prepare(settings, opened)


@pytest.fixture(scope="session")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    _prepare(Settings(data_dir=folder, _env_file=None))
    return folder


@pytest.fixture(scope="session")
def prepared_server(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database that others are copied from."""
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(b"CREATE DATABASE prepared_nights")
    url = postgres_server.replace("/postgres?", "/prepared_nights?", 1)
    _prepare(Settings(data_dir=tmp_path_factory.mktemp("pg"), database_url=url, _env_file=None))
    return postgres_server


@pytest.fixture
def server_copy(prepared_server: str) -> Iterator[str]:
    name = f"n{uuid.uuid4().hex}"
    with psycopg.connect(prepared_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE prepared_nights".encode())
        yield prepared_server.replace("/postgres?", f"/{name}?", 1)
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = None
    if request.param == "sqlite":
        shutil.copytree(request.getfixturevalue("prepared_folder"), tmp_path / "data")
    else:
        url = str(request.getfixturevalue("server_copy"))
    settings = Settings(data_dir=tmp_path / "data", database_url=url, _env_file=None)
    with closing(open_database(settings.database)) as opened:
        yield opened


@pytest.fixture
def queue(database: Database) -> Iterator[NightQueue]:
    with closing(night_queue(database)) as opened:
        yield opened
