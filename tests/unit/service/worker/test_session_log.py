"""Events of a running session: written in groups, before the checkpoint of their node, and none is lost."""

from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph.context import Context, Event
from service.db.engine import Database
from service.db.models import SessionRow
from service.db.sessions import events_after
from service.errors import FencedError
from service.settings import Settings
from service.uploads import Uploads
from service.worker import run_session
from service.worker.jobs import Lease, session_queue
from service.worker.run_session import SessionLog, WorkerDeps
from tests.unit.service.db.making import make, take
from tools.kb import open_seed


@pytest.fixture
def deps(sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkerDeps:
    monkeypatch.setattr(run_session, "EVENTS_EVERY_S", 1e6)
    settings = Settings(data_dir=tmp_path, _env_file=None)
    lease = Lease(sqlite, 1e6)
    lease.renew()
    return WorkerDeps(
        settings=settings,
        database=sqlite,
        queue=session_queue(sqlite),
        context=Context(open_seed()),
        checkpointer=InMemorySaver(),
        uploads=Uploads(settings),
        lease=lease,
        must_stop=lambda: False,
    )


def event(key: str) -> Event:
    return {"key": key, "at": 1.0, "node": "n", "kind": "tool"}


def keys(deps: WorkerDeps, row: SessionRow) -> list[str]:
    with deps.database.read() as conn:
        return [event.key for event in events_after(conn, row.id, 0) if event.kind == "tool"]


def test_events_wait_for_the_checkpoint_and_are_there_before_it(deps: WorkerDeps) -> None:
    row = take(deps.database, make(deps.database))
    log = SessionLog(deps, row)
    for key in "abc":
        log.emit(event(key))
    assert keys(deps, row) == ["1/a"]  # the first is late at once
    with log.claimed():
        assert keys(deps, row) == ["1/a", "1/b", "1/c"]
    with log.claimed():
        pass
    assert keys(deps, row) == ["1/a", "1/b", "1/c"]


def test_an_event_that_none_follows_is_written_by_the_workers_loop(
    deps: WorkerDeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = take(deps.database, make(deps.database))
    with deps.log_of(row) as log:
        log.emit(event("a"))
        log.emit(event("b"))
        deps.flush_logs()
        assert keys(deps, row) == ["1/a"]
        monkeypatch.setattr(run_session, "EVENTS_EVERY_S", 0.0)
        deps.flush_logs()
        assert keys(deps, row) == ["1/a", "1/b"]


def test_a_worker_that_lost_the_session_writes_no_event_and_no_checkpoint(deps: WorkerDeps) -> None:
    id = make(deps.database)
    row = take(deps.database, id)
    with deps.log_of(row) as log:
        log.emit(event("a"))
        log.emit(event("b"))
        take(deps.database, id, worker="w2")
        deps.flush_logs()
        with pytest.raises(FencedError, match="w2"), log.claimed():
            pytest.fail("a checkpoint would be written")
    assert keys(deps, row) == ["1/a"]


def test_what_led_to_the_end_is_kept_with_it(deps: WorkerDeps) -> None:
    row = take(deps.database, make(deps.database))
    log = SessionLog(deps, row)
    for key in "abb":
        log.emit(event(key))
    for _ in range(2):  # the answer to the first commit was lost
        with deps.database.begin() as conn:
            log.write(conn)
    assert keys(deps, row) == ["1/a", "1/b"]
