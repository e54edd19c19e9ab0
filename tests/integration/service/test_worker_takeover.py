"""Sessions whose worker died, or which the queue forgot, are found; those of the living are left alone."""

import pytest
import sqlalchemy as sa
from langgraph.checkpoint.base import CheckpointTuple

from graph.context import Context
from graph.events import SessionEvent
from service.checkpoints import open_checkpoints
from service.jobs.workers import heartbeat
from service.sessions.dispatch import SESSIONS
from service.sessions.lifecycle import set_state
from service.sessions.model import SessionRow, thread_of
from service.sessions.store import create_session
from service.settings import Settings
from service.worker import make_worker
from tests.integration.service.at_work import (
    TINY,
    Desk,
    assert_whole,
    wait_for,
    working,
)
from tools.kb import open_seed


def pretend(desk: Desk, id: str, status: str, worker: str | None = None) -> None:
    """Writes into the queue's own table what a worker would have left there."""
    table = "workflow_status" if desk.database.is_sqlite else "dbos.workflow_status"
    with desk.database.begin() as conn:
        conn.execute(
            sa.text(f"UPDATE {table} SET status = :status, executor_id = :worker WHERE workflow_uuid = :id"),
            {"status": status, "worker": worker, "id": SESSIONS.workflow_id(id, 1)},
        )


@pytest.mark.parametrize("settings", ["postgresql"], indirect=True)
def test_only_sessions_of_dead_workers_are_put_back(desk: Desk) -> None:
    lost, held, queued = desk.submit(), desk.submit(), desk.submit()
    pretend(desk, lost, "PENDING", "dead")
    pretend(desk, held, "PENDING", "living")
    with desk.database.begin() as conn:
        heartbeat(conn, "living", "host", 1)
    assert desk.queue.take_over(lease_s=60) == [SESSIONS.workflow_id(lost, 1)]
    assert desk.queue.take_over(lease_s=60) == []
    assert desk.queue.running() == {SESSIONS.workflow_id(held, 1): "living"}
    assert desk.queue.unfinished([SESSIONS.workflow_id(queued, 1)]) == {SESSIONS.workflow_id(queued, 1)}


def test_a_session_without_a_workflow_is_queued_again_and_runs(settings: Settings, desk: Desk) -> None:
    with desk.database.begin() as conn:
        id = create_session(conn, SessionRow(request=TINY))[0].id
    there = desk.submit()
    assert desk.queue.reconcile(quiet_s=60) == []
    assert desk.queue.reconcile(quiet_s=-60) == [id]
    assert desk.queue.reconcile(quiet_s=-60) == []
    with working(settings):
        rows = [desk.wait(id), desk.wait(there)]
    assert [(row.state, row.dispatch_no) for row in rows] == [("completed", 2), ("completed", 1)]
    assert_whole(desk.events(id))


def test_a_session_whose_workflow_ended_without_it_is_queued_again(desk: Desk) -> None:
    id, ended = desk.submit(), desk.submit()
    for session_id in (id, ended):
        pretend(desk, session_id, "SUCCESS")
    with desk.database.begin() as conn:
        set_state(conn, ended, "completed")
    assert desk.queue.reconcile(quiet_s=-60) == [id]
    assert desk.row(id).dispatch_no == 2
    assert desk.queue.unfinished([SESSIONS.workflow_id(id, 2)]) == {SESSIONS.workflow_id(id, 2)}


def test_a_submission_that_is_rolled_back_is_not_queued(desk: Desk) -> None:
    with desk.database.engine.connect() as conn, conn.begin() as transaction:
        row, _ = create_session(conn, SessionRow(request=TINY))
        desk.queue.enqueue(conn, row)
        transaction.rollback()
    assert desk.queue.unfinished([SESSIONS.workflow_id(row.id, 1)]) == set()


class TakesOver:
    """Another worker that claims the session between the last event of a node and its checkpoint."""

    def __init__(self, settings: Settings, desk: Desk, id: str) -> None:
        self.settings, self.desk, self.id = settings, desk, id
        self.before: CheckpointTuple | None = None

    def observe_wait(self, seconds: float) -> None:
        """Not of interest."""

    def observe_event(self, event: SessionEvent) -> None:
        if (event.node, event.kind) == ("analyzer", "finished"):
            self.before = self.checkpoint()
            with self.desk.database.begin() as conn:
                assert SESSIONS.claim(conn, self.id, "other", dispatch_no=1) is not None

    def checkpoint(self) -> CheckpointTuple | None:
        with open_checkpoints(self.settings) as saver:
            return saver.get_tuple({"configurable": {"thread_id": thread_of(self.id, 1)}})


def test_a_worker_that_lost_its_session_writes_no_checkpoint(settings: Settings, desk: Desk) -> None:
    id = desk.submit()
    other = TakesOver(settings, desk, id)
    worker = make_worker(settings, Context(open_seed()), other)
    worker.start()
    wait_for(lambda: desk.row(id).worker == "other")
    assert worker.stop()
    assert other.before is not None
    assert other.checkpoint() == other.before
