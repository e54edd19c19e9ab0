"""For all tests of the running service."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.settings import Settings
from tests.integration.service.at_work import Desk, opened, settings_for


@pytest.fixture(autouse=True)
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """DBOS looks once a second whether its workflows have ended: as many times over, a minute of waiting."""
    look_s = 0.02
    hurried = SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(min(seconds, look_s)))
    monkeypatch.setattr("dbos._dbos.time", hurried)


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    server = None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    return settings_for(tmp_path, server)


@pytest.fixture
def desk(settings: Settings) -> Iterator[Desk]:
    with opened(settings) as one:
        yield one
