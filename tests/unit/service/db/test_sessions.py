"""Sessions: created once, found by their tenant only, listed without gap or repeat."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from service.db.engine import Database
from service.db.lifecycle import decide, set_state
from service.db.models import new_id
from service.db.sessions import (
    SessionFilter,
    delete_session,
    events_after,
    find_search,
    get_session,
    keep_search,
    list_sessions,
    lock_session,
    rename_session,
)
from service.errors import ConflictError
from tests.unit.service.db.making import make


def ids(database: Database, tenant: str = "", **filters: object) -> list[str]:
    with database.read() as conn:
        rows, _ = list_sessions(conn, tenant, SessionFilter(**filters), limit=500)  # type: ignore[arg-type]
    return [row.id for row in rows]


def test_a_new_session_is_queued_and_says_so(database: Database) -> None:
    id = make(database, model="Llama", device="h100", num_devices=8, labels={"team": "a"}, owner="ann")
    with database.read() as conn:
        row = get_session(conn, "", id)
        told = events_after(conn, id, 0)
    assert (row.state, row.dispatch_no, row.attempt) == ("queued", 1, 1)
    assert (row.labels, row.owner) == ({"team": "a"}, "ann")
    assert row.request == {"model": {}}
    assert [(event.seq, event.kind, event.content) for event in told] == [(1, "state", {"state": "queued"})]


def test_an_idempotency_key_is_the_tenants_own(database: Database) -> None:
    assert make(database, tenant="a", idempotency_key="k") != make(database, tenant="b", idempotency_key="k")


def test_filters_hold_together(database: Database) -> None:
    wanted = make(database, model="Llama-3", device="h100", labels={"team": "a", "run": "1"}, owner="ann")
    make(database, model="Llama-3", device="a100", labels={"team": "a"})
    make(database, model="Qwen", device="h100", labels={"team": "b"})
    both = {"team": "a", "run": None}
    assert ids(database, device="h100", model="Llama-3", state="queued", labels=both) == [wanted]
    assert ids(database, text="LLAMA ann") == [wanted]
    assert ids(database, labels={"team": "c"}) == []
    assert ids(database, text="100%") == []


def test_long_notes_are_kept_and_found_by_their_beginning(database: Database) -> None:
    notes = "slow since Monday " + "\u00e9" * 5000
    id = make(database, request={"notes": notes})
    assert ids(database, text="MONDAY") == [id]
    with database.read() as conn:
        assert get_session(conn, "", id).request == {"notes": notes}


def test_newest_comes_first_and_a_page_ends_with_a_cursor(database: Database) -> None:
    made = [make(database) for _ in range(5)]
    with database.read() as conn:
        first, cursor = list_sessions(conn, "", limit=3)
        second, end = list_sessions(conn, "", cursor=cursor, limit=3)
    assert [row.id for row in first + second] == sorted(made, reverse=True)
    assert end is None


@hypothesis_settings(max_examples=25)
@given(
    at_start=st.integers(0, 30),
    size=st.integers(1, 7),
    arrivals=st.lists(st.integers(0, 3), min_size=40, max_size=40),
)
def test_pages_are_stable_while_sessions_arrive(
    shared_database: Database, at_start: int, size: int, arrivals: list[int]
) -> None:
    tenant = new_id()
    there = [make(shared_database, tenant=tenant) for _ in range(at_start)]
    listed: list[str] = []
    cursor = None
    for arriving in arrivals:
        with shared_database.read() as conn:
            rows, cursor = list_sessions(conn, tenant, cursor=cursor, limit=size)
        listed += [row.id for row in rows]
        if cursor is None:
            break
        for _ in range(arriving):
            make(shared_database, tenant=tenant)
    assert listed == sorted(there, reverse=True)


def test_a_running_session_must_be_cancelled_before_it_is_deleted(database: Database) -> None:
    id = make(database, labels={"team": "a"})
    with database.begin() as conn, pytest.raises(ConflictError, match="cancel it first"):
        delete_session(conn, "", id)
    with database.begin() as conn:
        set_state(conn, id, "failed", error={"kind": "x"})
        delete_session(conn, "", id)
    assert ids(database) == []
    with database.read() as conn:
        assert events_after(conn, id, 0) == []


def test_a_session_that_is_decided_upon_meanwhile_is_not_deleted(database: Database) -> None:
    """Or its new dispatch_no would stay in the queue: only the legs that are known are erased."""
    id = make(database)
    with database.begin() as conn:
        set_state(conn, id, "waiting_approval")

    def delete() -> None:
        with database.begin() as conn:
            delete_session(conn, "", id)

    with ThreadPoolExecutor(1) as threads:
        with database.begin() as conn:
            decide(conn, lock_session(conn, id, tenant=""), {"action": "approve"}, by="ann")
            deletion = threads.submit(delete)
            time.sleep(0.3)
        with pytest.raises(ConflictError, match="queued"):
            deletion.result()
    assert ids(database) == [id]


def test_a_renamed_session_is_found_by_its_new_name_only(database: Database) -> None:
    id = make(database, model="Llama", name="Baseline A")
    assert ids(database, text="baseline") == [id]
    with database.begin() as conn:
        renamed = rename_session(conn, lock_session(conn, id), "After the switch")
    assert (renamed.name, ids(database, text="switch llama"), ids(database, text="baseline")) == (
        "After the switch",
        [id],
        [],
    )


def test_the_plans_of_a_search_belong_to_their_tenant_and_go_with_their_session(database: Database) -> None:
    id = make(database, tenant="a")
    with database.begin() as conn:
        keep_search(conn, id, b"first")
        keep_search(conn, id, b"second")
    with database.begin() as conn:
        assert (find_search(conn, "a", id), find_search(conn, "b", id)) == (b"second", None)
        set_state(conn, id, "failed")
        delete_session(conn, "a", id)
        assert find_search(conn, "a", id) is None
