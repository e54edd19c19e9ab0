"""The worker inside of a server's process: a server without it must not go on."""

import sys
from threading import Event

import pytest

from service.server import WorkerRunner
from service.settings import Settings
from tests.unit.service.served import Served


@pytest.mark.parametrize("broken", ["service.schedules.night", "service.jobs.worker"])
def test_a_worker_whose_code_cannot_be_imported_ends_the_server(
    served: Served, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    monkeypatch.setitem(sys.modules, broken, None)  # an import of it raises ImportError
    runner, failed = WorkerRunner(Settings(_env_file=None), served.app.metrics), Event()
    runner.start(failed.set)
    assert failed.wait(60.0)
    runner.begin_stop()
    assert not runner.finish()
