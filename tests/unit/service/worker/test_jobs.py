"""A worker's own parts: its lease, its loops, and the program that somebody starts by hand."""

import os
import subprocess
import sys
import threading
import time

import pytest

from service.db.engine import Database
from service.db.lifecycle import list_living
from service.worker.jobs import EMBEDDED, Lease, Loop


def living(sqlite: Database, lease_s: float) -> list[str]:
    with sqlite.read() as conn:
        return [worker.id for worker in list_living(conn, lease_s)]


def test_a_lease_holds_from_its_first_renewal_until_it_is_given_up(sqlite: Database) -> None:
    lease = Lease(sqlite, lease_s=60)
    assert not lease.is_held()
    lease.renew()
    assert lease.is_held()
    assert living(sqlite, 60) == [EMBEDDED]
    lease.give_up()
    assert not lease.is_held()
    assert living(sqlite, 60) == []


def test_a_lease_that_is_not_renewed_runs_out(sqlite: Database) -> None:
    lease = Lease(sqlite, lease_s=0.05)
    lease.renew()
    time.sleep(0.06)
    assert not lease.is_held()
    assert living(sqlite, 0.05) == []
    lease.renew()
    assert lease.is_held()


def test_a_renewal_that_fails_extends_nothing(sqlite: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(sqlite, lease_s=60)
    monkeypatch.setattr("service.worker.jobs.heartbeat", lambda *_: 1 / 0)
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


def test_a_loop_that_never_began_can_be_stopped() -> None:
    loop = Loop("test", every_s=1, work=lambda: None)
    loop.stop()
    assert not loop.is_running()


def test_a_wrong_setting_is_one_line_without_a_traceback() -> None:
    wrong = {**os.environ, "ASAP_LEASE_S": "soon"}
    done = subprocess.run(
        [sys.executable, "-m", "service.worker"], env=wrong, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("service.worker: ASAP_LEASE_S: got 'soon'; ")
    assert len(done.stderr.splitlines()) == 1
