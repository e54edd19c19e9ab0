"""Keys, the audit log, traces, deliveries, workers and identifiers."""

import time

import pytest

from service.db import traces
from service.db.access import (
    add_key,
    find_key,
    has_keys,
    list_audit,
    list_keys,
    record,
    revoke_key,
    touch_key,
)
from service.db.engine import Database
from service.db.lifecycle import delete_dead, heartbeat, leave, list_living, set_state
from service.db.models import is_id, new_id
from service.db.outbox import close_delivery, reschedule, take_due
from service.errors import ConflictError, NotFoundError
from tests.unit.service.db.making import list_deliveries, make
from tools.errors import InputError


def test_ids_sort_by_time_and_never_meet() -> None:
    earlier, later = new_id(1_000.0), new_id(1_000.001)
    assert earlier < later
    assert all(is_id(id) and id[12] == "7" and id[16] in "89ab" for id in (earlier, later))
    assert len({new_id(1.0) for _ in range(1000)}) == 1000
    assert not is_id("G" * 32)


def test_a_key_is_valid_until_it_expires_or_is_revoked(database: Database) -> None:
    with database.begin() as conn:
        assert not has_keys(conn)
        add_key(conn, "k1", "d" * 64, "ci", ["read", "submit"], tenant="a", expires_at=2000.0)
        touch_key(conn, "k1")
        found = find_key(conn, "k1")
        assert has_keys(conn)
    assert found is not None
    assert (found.scopes, found.tenant, found.used_at is not None) == (["read", "submit"], "a", True)
    assert found.is_valid(1999.0)
    assert not found.is_valid(2000.0)
    with database.begin() as conn:
        revoke_key(conn, "k1")
        first = list_keys(conn)[0].revoked_at
        revoke_key(conn, "k1")
        again = list_keys(conn)[0]
        assert again.revoked_at == first
        assert not again.is_valid(0.0)
        assert find_key(conn, "k2") is None
        with pytest.raises(NotFoundError):
            revoke_key(conn, "k2")


def test_the_audit_log_tells_a_tenant_its_own_newest_first(database: Database) -> None:
    with database.begin() as conn:
        record(conn, "a", "ann", "decide", "s1", "r1", action_taken="approve")
        record(conn, "a", "ann", "cancel", "s2")
        record(conn, "b", "bob", "cancel", "s3")
        rows, _ = list_audit(conn, "a")
        one, _ = list_audit(conn, "a", target="s1")
        first, following = list_audit(conn, "a", limit=1)
        rest, end = list_audit(conn, "a", cursor=following, limit=1)
    assert {row.target for row in rows} == {"s1", "s2"}
    assert [row.id for row in rows] == sorted((row.id for row in rows), reverse=True)
    assert (one[0].who, one[0].request_id, one[0].details) == ("ann", "r1", {"action_taken": "approve"})
    assert [first, rest, end] == [rows[:1], rows[1:], None]


def test_an_upload_grows_completes_and_expires(database: Database) -> None:
    with database.begin() as conn:
        made = traces.create_trace(conn, "a", "ann", "run 7", keep_s=100)
        traces.set_received(conn, made.id, "rank0.json", 10)
        traces.set_received(conn, made.id, "rank0.json", 25)
        open_row = traces.get_trace(conn, "a", made.id, lock=True)
        done = traces.complete_trace(conn, "a", made.id, {"rank0.json": "e" * 64})
        with pytest.raises(ConflictError, match="complete"):
            traces.complete_trace(conn, "a", made.id, {})
        traces.set_analysis(conn, made.id, {"total": {}})
        analysed = traces.get_trace(conn, "a", made.id)
    assert open_row.files == [traces.TraceFile("rank0.json", 25, None)]
    assert (done.state, done.files[0].sha256, analysed.analysis) == ("complete", "e" * 64, {"total": {}})
    with database.begin() as conn:
        assert traces.list_expired(conn, time.time()) == []
        assert [row.id for row in traces.list_expired(conn, time.time() + 101)] == [made.id]
        with pytest.raises(NotFoundError):
            traces.delete_trace(conn, "b", made.id)
        traces.delete_trace(conn, "a", made.id)
        with pytest.raises(NotFoundError):
            traces.get_trace(conn, "a", made.id)


def test_uploads_are_listed_page_by_page(database: Database) -> None:
    with database.begin() as conn:
        made = [traces.create_trace(conn, "a", "", str(number), keep_s=1).id for number in range(3)]
        first, cursor = traces.list_traces(conn, "a", limit=2)
        second, end = traces.list_traces(conn, "a", cursor, limit=2)
        with pytest.raises(InputError):
            traces.list_traces(conn, "a", "no cursor")
        assert traces.list_traces(conn, "b") == ([], None)
    assert [row.id for row in first + second] == sorted(made, reverse=True)
    assert end is None


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


def test_a_worker_lives_while_it_is_heard_of(database: Database) -> None:
    with database.begin() as conn:
        heartbeat(conn, "w1", "host", 1)
        heartbeat(conn, "w2", "host", 2)
        heartbeat(conn, "w1", "host", 1)
    with database.begin() as conn:
        assert [row.id for row in list_living(conn, lease_s=60)] == ["w1", "w2"]
        assert abs(list_living(conn, lease_s=60)[0].heard_at - time.time()) < 60
        leave(conn, "w2")
        assert [row.id for row in list_living(conn, lease_s=60)] == ["w1"]
    time.sleep(0.01)
    with database.begin() as conn:
        assert list_living(conn, lease_s=0.005) == []
        delete_dead(conn, silent_s=0.005)
        assert list_living(conn, lease_s=60) == []
