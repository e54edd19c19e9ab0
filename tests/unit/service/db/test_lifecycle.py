"""How a session moves, and which moves are refused."""

from contextlib import nullcontext
from typing import Any

import pytest
import sqlalchemy as sa

from graph.request import Decision
from service.db.engine import Database
from service.errors import ConflictError, FencedError
from service.sessions.dispatch import MAX_CLAIMS, SESSIONS
from service.sessions.event_store import events_after
from service.sessions.lifecycle import (
    decide,
    find_decision,
    request_cancel,
    retry,
    set_state,
)
from service.sessions.model import SessionRow
from service.sessions.store import list_sessions, lock_session
from tests.unit.service.db.making import list_decisions, list_deliveries, make, read, take


def states(database: Database, id: str) -> list[str]:
    with database.read() as conn:
        return [str(event.content["state"]) for event in events_after(conn, id, 0) if event.kind == "state"]


def move(database: Database, id: str, state: str, fence: int | None = None, **columns: Any) -> None:  # noqa: ANN401
    with database.begin() as conn:
        set_state(conn, id, state, fence, **columns)


def test_a_session_is_reported_from_queue_to_end(database: Database) -> None:
    id = make(database)
    held = take(database, id)
    for _ in range(2):  # a state that is there already is not told again
        move(database, id, "completed", held.fence, report={"proposals": []}, verdict="fine", speedup=1.5)
    row = read(database, id)
    assert states(database, id) == ["queued", "running", "completed"]
    assert (row.worker, row.report, row.verdict, row.speedup) == ("w1", {"proposals": []}, "fine", 1.5)
    assert row.started_at is not None
    assert row.finished_at is not None
    assert row.created_at <= row.started_at <= row.finished_at


def test_what_has_ended_or_waits_cannot_be_claimed(database: Database) -> None:
    for state in ("completed", "failed", "cancelled", "waiting_approval"):
        id = make(database)
        move(database, id, state)
        with database.begin() as conn:
            assert SESSIONS.claim(conn, id, "w1", dispatch_no=1) is None


def test_an_older_dispatch_cannot_be_claimed(database: Database) -> None:
    id = make(database)
    with database.begin() as conn:
        row = SESSIONS.next_dispatch(conn, id, dispatch_no=1)
        assert row is not None
        assert row.dispatch_no == 2
        assert SESSIONS.next_dispatch(conn, id, dispatch_no=1) is None
        assert SESSIONS.claim(conn, id, "w1", dispatch_no=1) is None
        assert SESSIONS.claim(conn, id, "w1", dispatch_no=2) is not None
        assert SESSIONS.claim(conn, "0" * 32, "w1", dispatch_no=1) is None


def test_a_session_that_kills_its_workers_ends_at_last(database: Database) -> None:
    id = make(database)
    for _ in range(MAX_CLAIMS):
        take(database, id)
    with database.begin() as conn:
        assert SESSIONS.claim(conn, id, "w1", dispatch_no=1) is None
    row = read(database, id)
    assert row.state == "failed"
    assert row.error is not None
    assert row.error.kind == "gave_up"


def cancel(database: Database, id: str) -> None:
    with database.begin() as conn:
        request_cancel(conn, lock_session(conn, id, tenant=""))


def test_a_session_that_was_asked_to_stop_stops_where_its_worker_gives_it_back(database: Database) -> None:
    id = make(database)
    take(database, id)
    cancel(database, id)
    with database.begin() as conn:
        assert SESSIONS.next_dispatch(conn, id, 1) is None
    assert states(database, id) == ["queued", "running", "cancelled"]


def test_nobody_is_asked_about_a_session_that_was_asked_to_stop(database: Database) -> None:
    id = make(database)
    held = take(database, id)
    cancel(database, id)
    for _ in range(2):
        move(database, id, "waiting_approval", held.fence, waiting_for={"proposals": []})
    assert states(database, id) == ["queued", "running", "cancelled"]
    assert read(database, id).waiting_for is None


def test_a_retry_is_a_new_attempt_and_dispatch(database: Database) -> None:
    id = make(database)
    with database.begin() as conn, pytest.raises(ConflictError, match="queued"):
        retry(conn, lock_session(conn, id, tenant=""))
    held = take(database, id)
    move(database, id, "failed", held.fence, error={"kind": "unexpected", "message": "m"})
    with database.begin() as conn:
        row = retry(conn, lock_session(conn, id, tenant=""))
    assert (row.state, row.dispatch_no, row.attempt, row.error, row.claims) == ("queued", 2, 2, None, 0)
    assert row.finished_at is None
    with pytest.raises(FencedError):
        move(database, id, "completed", held.fence)


def test_a_decision_queues_the_dispatch_that_acts_on_it_once(database: Database) -> None:
    id = make(database)
    move(database, id, "waiting_approval", waiting_for={"question": "which?"})
    given = Decision(id="d1", action="approve", proposal=2, by="ann")
    with database.begin() as conn:
        row = decide(conn, lock_session(conn, id, tenant=""), given)
        again = decide(conn, lock_session(conn, id, tenant=""), given)
    assert (row.state, row.dispatch_no, row.waiting_for) == ("queued", 2, None)
    assert again.dispatch_no == 2
    with database.read() as conn:
        found = find_decision(conn, id, attempt=1)
        assert find_decision(conn, id, attempt=2) is None
        told = list_decisions(conn, id)
    assert found == given
    assert [decision["action"] for decision in told] == ["approve"]


def test_a_decisions_id_belongs_to_one_session(database: Database) -> None:
    for id in (make(database), make(database)):
        move(database, id, "waiting_approval")
    with database.begin() as conn:
        first, second = sorted(row.id for row in _all(conn))
        decide(conn, lock_session(conn, first, tenant=""), Decision(id="d", action="approve"))
        with pytest.raises(ConflictError, match="another decision"):
            decide(conn, lock_session(conn, second, tenant=""), Decision(id="d", action="approve"))


def _all(conn: sa.Connection) -> list[SessionRow]:
    return list_sessions(conn, "")[0]


def test_a_webhook_is_queued_with_the_state_it_reports(database: Database) -> None:
    id = make(database, webhook="https://example.org/hook", labels={"team": "a"})
    silent = make(database)
    for session_id in (id, silent):
        held = take(database, session_id)
        move(database, session_id, "waiting_approval", held.fence)
        move(database, session_id, "completed", held.fence, verdict="fine")
    with database.read() as conn:
        booked, none = list_deliveries(conn, id), list_deliveries(conn, silent)
    bodies = [row.body for row in booked]
    assert [body["state"] for body in bodies] == ["waiting_approval", "completed"]
    assert bodies[1]["verdict"] == "fine"
    assert bodies[1]["labels"] == {"team": "a"}
    assert none == []


def fail_and_be_fenced(conn: sa.Connection, id: str) -> None:
    set_state(conn, id, "failed")
    set_state(conn, id, "completed", fence=7)


def test_a_move_that_is_rolled_back_books_nothing(database: Database) -> None:
    id = make(database, webhook="https://example.org/hook")
    with pytest.raises(FencedError), database.begin() as conn:
        fail_and_be_fenced(conn, id)
    with database.read() as conn:
        assert list_deliveries(conn, id) == []
    assert states(database, id) == ["queued"]


@pytest.mark.parametrize(("scenario", "is_ours"), [({"model": {}}, True), (None, False)])
def test_a_completed_session_is_decided_on_if_this_cost_model_made_it(
    database: Database, scenario: dict[str, Any] | None, is_ours: bool
) -> None:
    id = make(database, state="completed", report={"scenario": scenario, "verdict": "It can be faster."})
    with database.begin() as conn, nullcontext() if is_ours else pytest.raises(ConflictError, match="again"):
        assert decide(conn, lock_session(conn, id, tenant=""), Decision(action="approve")).state == "queued"
