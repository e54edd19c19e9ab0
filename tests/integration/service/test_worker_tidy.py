"""What stays of a session outside our tables: checkpoints to fork it from, and nothing once it is deleted."""

from graph.context import Context
from graph.report import Report
from service.checkpoints import open_checkpoints
from service.sessions.cleanup import erase_deleted
from service.sessions.dispatch import SESSIONS
from service.sessions.model import thread_of
from service.sessions.store import delete_session, list_cleanups
from service.settings import Settings
from tests.integration.service.at_work import Desk, assert_whole, working
from tools.kb import open_seed


def checkpoints(settings: Settings, id: str, attempt: int = 1) -> int:
    with open_checkpoints(settings) as saver:
        return len(list(saver.list({"configurable": {"thread_id": thread_of(id, attempt)}})))


def test_a_completed_session_keeps_its_checkpoints_and_can_still_be_decided_upon(
    settings: Settings, desk: Desk
) -> None:
    with working(settings):
        id = desk.submit()
        desk.wait(id)
        desk.approve(id, by="ann")
        row = desk.wait(id)
    assert row.state == "completed"
    assert [decision.by for decision in Report.model_validate(row.report).decisions] == ["ann"]
    assert checkpoints(settings, id) > 10
    told = [event.key for event in desk.events(id)]
    assert len(set(told)) == len(told)


def test_a_failed_session_keeps_what_it_can_be_forked_from(settings: Settings, desk: Desk) -> None:
    id, calls, there = desk.submit(), iter(range(8)), list[int]()

    def broken() -> float:
        """In the middle of the session, when there are checkpoints."""
        if next(calls, None) is None:
            there.append(checkpoints(settings, id))
            raise ZeroDivisionError
        return 1.0

    with working(settings, Context(open_seed(), clock=broken)):
        assert desk.wait(id).state == "failed"
    assert there
    assert there[0] > 0
    assert len(desk.events(id)) > 3
    assert checkpoints(settings, id) == there[0]
    assert_whole(desk.events(id))


def test_nothing_stays_of_a_session_that_was_deleted(settings: Settings, desk: Desk) -> None:
    with working(settings):
        id, other = desk.submit(), desk.submit()
        desk.wait(id)
        desk.wait(other)
    with desk.database.begin() as conn:
        delete_session(conn, "", id)
        assert [cleanup.session_id for cleanup in list_cleanups(conn)] == [id]
    with open_checkpoints(settings) as saver:
        assert erase_deleted(desk.database, desk.queue, saver) == [id]
        assert erase_deleted(desk.database, desk.queue, saver) == []
    assert checkpoints(settings, id) == 0
    assert checkpoints(settings, other) > 10
    assert desk.queue.recorded([SESSIONS.workflow_id(id, 1), SESSIONS.workflow_id(other, 1)]) == {
        SESSIONS.workflow_id(other, 1)
    }
