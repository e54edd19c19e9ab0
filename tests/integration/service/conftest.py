"""For all tests of the running service."""

import time
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def quick_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """DBOS looks once a second whether its workflows have ended: as many times over, a minute of waiting."""
    look_s = 0.02
    hurried = SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(min(seconds, look_s)))
    monkeypatch.setattr("dbos._dbos.time", hurried)
