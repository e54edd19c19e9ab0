"""Keys, the audit log, traces, deliveries, workers and identifiers."""

from service.db.engine import Database
from service.jobs.outbox import close_delivery, reschedule, take_due
from service.sessions.lifecycle import set_state
from tests.unit.service.db.making import list_deliveries, make


def test_a_delivery_is_taken_by_one_sender_at_a_time(database: Database) -> None:
    id = make(database, webhook="https://example.org/hook")
    with database.begin() as conn:
        set_state(conn, id, "failed")
        taken = take_due(conn, lease_s=60)
        assert take_due(conn, lease_s=60) == []
        reschedule(conn, taken[0].id, "503", due_at=0.0)
        again = take_due(conn, lease_s=60)
        close_delivery(conn, again[0].id, "200 OK")
        assert take_due(conn, lease_s=0) == []
        rows = list_deliveries(conn, id)
    assert (taken[0].attempts, again[0].attempts) == (1, 2)
    assert rows[0].delivered_at is not None


def test_a_delivery_that_is_given_up_is_never_due(database: Database) -> None:
    id = make(database, webhook="https://example.org/hook")
    with database.begin() as conn:
        set_state(conn, id, "failed")
        reschedule(conn, take_due(conn, lease_s=0)[0].id, "refused", due_at=None)
        assert take_due(conn, lease_s=0) == []
