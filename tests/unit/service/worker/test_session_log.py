"""Events of a running session: written in groups, before the checkpoint of their node, and none is lost."""

from contextlib import ExitStack
from pathlib import Path

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from graph.context import Context
from graph.events import SessionEvent, ToolCalled
from service.db.engine import Database
from service.errors import FencedError
from service.jobs.worker import WorkerDeps
from service.jobs.workers import Lease
from service.sessions import log as session_log
from service.sessions.dispatch import session_queue
from service.sessions.event_store import events_after
from service.sessions.log import SessionLog
from service.sessions.model import SessionRow
from service.sessions.run import SessionDeps
from service.settings import Settings
from service.traces.uploads import Uploads
from tests.unit.service.db.making import make, take
from tools.kb import open_seed


@pytest.fixture
def deps(sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionDeps:
    monkeypatch.setattr(session_log, "EVENTS_EVERY_S", 1e6)
    settings = Settings(data_dir=tmp_path, _env_file=None)
    lease = Lease(sqlite, 1e6)
    lease.renew()
    return SessionDeps(
        WorkerDeps(settings, sqlite, lease, lambda: False, ExitStack()),
        queue=session_queue(sqlite),
        context=Context(open_seed()),
        checkpointer=InMemorySaver(),
        uploads=Uploads(settings),
    )


def event(key: str) -> SessionEvent:
    return ToolCalled(key=key, at=1.0, node="n")


def keys(deps: SessionDeps, row: SessionRow) -> list[str]:
    with deps.worker.database.read() as conn:
        return [event.key for event in events_after(conn, row.id, 0) if event.kind == "tool"]


def test_events_wait_for_the_checkpoint_and_are_there_before_it(deps: SessionDeps) -> None:
    row = take(deps.worker.database, make(deps.worker.database))
    log = SessionLog(deps.worker, row)
    for key in "abc":
        log.emit(event(key))
    assert keys(deps, row) == ["1/a"]  # the first is late at once
    with log.claimed():
        assert keys(deps, row) == ["1/a", "1/b", "1/c"]
    with log.claimed():
        pass
    assert keys(deps, row) == ["1/a", "1/b", "1/c"]


def test_an_event_that_none_follows_is_written_by_the_workers_loop(
    deps: SessionDeps, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = take(deps.worker.database, make(deps.worker.database))
    with deps.log_of(row) as log:
        log.emit(event("a"))
        log.emit(event("b"))
        deps.flush_logs()
        assert keys(deps, row) == ["1/a"]
        monkeypatch.setattr(session_log, "EVENTS_EVERY_S", 0.0)
        deps.flush_logs()
        assert keys(deps, row) == ["1/a", "1/b"]


def test_a_worker_that_lost_the_session_writes_no_event_and_no_checkpoint(deps: SessionDeps) -> None:
    id = make(deps.worker.database)
    row = take(deps.worker.database, id)
    with deps.log_of(row) as log:
        log.emit(event("a"))
        log.emit(event("b"))
        take(deps.worker.database, id, worker="w2")
        deps.flush_logs()
        with pytest.raises(FencedError, match="w2"), log.claimed():
            pytest.fail("a checkpoint would be written")
    assert keys(deps, row) == ["1/a"]


def test_what_led_to_the_end_is_kept_with_it(deps: SessionDeps) -> None:
    row = take(deps.worker.database, make(deps.worker.database))
    log = SessionLog(deps.worker, row)
    for key in "abb":
        log.emit(event(key))
    for _ in range(2):  # the answer to the first commit was lost
        with deps.worker.database.begin() as conn:
            log.write(conn)
    assert keys(deps, row) == ["1/a", "1/b"]
