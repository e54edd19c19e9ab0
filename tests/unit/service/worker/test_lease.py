"""A worker's view of its own lease is never longer than what the others see."""

import time
from pathlib import Path

import pytest

from service.db.engine import Database, open_database
from service.db.lifecycle import list_living
from service.worker.jobs import EMBEDDED, Lease


@pytest.fixture
def database(tmp_path: Path) -> Database:
    opened = open_database(f"sqlite:///{tmp_path / 'asap.db'}")
    opened.upgrade()
    return opened


def living(database: Database, lease_s: float) -> list[str]:
    with database.read() as conn:
        return [worker.id for worker in list_living(conn, lease_s)]


def test_a_lease_holds_from_its_first_renewal_until_it_is_given_up(database: Database) -> None:
    lease = Lease(database, lease_s=60)
    assert not lease.is_held()
    lease.renew()
    assert lease.is_held()
    assert living(database, 60) == [EMBEDDED]
    lease.give_up()
    assert not lease.is_held()
    assert living(database, 60) == []


def test_a_lease_that_is_not_renewed_runs_out(database: Database) -> None:
    lease = Lease(database, lease_s=0.05)
    lease.renew()
    time.sleep(0.06)
    assert not lease.is_held()
    assert living(database, 0.05) == []
    lease.renew()
    assert lease.is_held()


def test_a_renewal_that_fails_extends_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(database, lease_s=60)
    monkeypatch.setattr("service.worker.jobs.heartbeat", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lease.renew()
    assert not lease.is_held()
