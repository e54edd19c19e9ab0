"""A worker's own parts: its lease, its loops, and the program that somebody starts by hand."""

import threading

import pytest

from service.db.engine import Database
from service.jobs.loop import Loop
from service.jobs.workers import Lease


def test_a_renewal_that_fails_extends_nothing(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(sqlite, lease_s=60)
    monkeypatch.setattr("service.jobs.workers.heartbeat", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lease.renew()
    assert not lease.is_held()


def test_one_failure_does_not_end_a_loop() -> None:
    turns: list[int] = []
    enough = threading.Event()

    def work() -> None:
        turns.append(len(turns))
        if len(turns) == 1:
            raise ValueError("once")
        if len(turns) == 3:
            enough.set()

    loop = Loop("test", every_s=0.001, work=work)
    loop.start()
    assert enough.wait(30)
    loop.stop()
    assert len(turns) >= 3
    assert not loop.is_running()
