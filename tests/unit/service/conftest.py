"""Makes APIs for the tests of this folder; see served.py."""

import copy
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.app import create_app, make_app_state
from service.db.engine import Database, open_database
from service.jobs.engine import prepare
from service.sessions.dispatch import session_queue
from service.settings import Settings
from tests.unit.graph.cases import report_of
from tests.unit.service.served import BASE, LOOPBACK, SCENARIO, Serve, Served
from tools.kb import open_seed


@pytest.fixture(scope="session")
def empty_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with every table, made once and copied for each test."""
    folder = tmp_path_factory.mktemp("data")
    settings = Settings(data_dir=folder)
    with closing(open_database(settings.database)) as database:
        prepare(settings, database)
    return folder


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    """A database with every table of ours and no queue."""
    with closing(open_database(Settings(data_dir=tmp_path / "data", _env_file=None).database)) as database:
        database.upgrade()
        yield database


@pytest.fixture
def serve(empty_data: Path, tmp_path: Path) -> Iterator[Serve]:
    """Makes an API with these settings; several calls give several replicas over one database."""
    open_now: list[Callable[[], object]] = []
    shutil.copytree(empty_data, tmp_path / "data")

    def make(
        *, host: str = "127.0.0.1", address: tuple[str, int] = LOOPBACK, base: str = BASE, **more: object
    ) -> Served:
        settings = Settings(data_dir=tmp_path / "data", embedding="none", **more)  # type: ignore[arg-type]
        database = open_database(settings.database)
        app = make_app_state(settings, database, session_queue(database), host, open_seed)
        client = TestClient(create_app(app), base, client=address, raise_server_exceptions=False)
        client.__enter__()
        open_now.extend([database.close, partial(client.__exit__, None, None, None)])
        return Served(client, app)

    yield make
    for close in reversed(open_now):
        close()


@pytest.fixture
def served(serve: Serve) -> Served:
    return serve()


@pytest.fixture
def scenario() -> dict[str, Any]:
    """A small workload, for a test to change."""
    return copy.deepcopy(SCENARIO)


@pytest.fixture(scope="session")
def report() -> dict[str, Any]:
    """What the agents say about the scenario, by the expert rules."""
    return report_of(SCENARIO)
