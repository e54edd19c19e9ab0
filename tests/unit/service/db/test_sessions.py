"""Sessions: created once, found by their tenant only, listed without gap or repeat."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from graph.request import Decision
from service.db.engine import Database
from service.db.ids import new_id
from service.errors import ConflictError
from service.sessions.lifecycle import decide, set_state
from service.sessions.store import (
    SessionFilter,
    delete_session,
    find_search,
    keep_search,
    list_sessions,
    lock_session,
)
from tests.unit.service.db.making import make


def ids(database: Database, tenant: str = "", **filters: object) -> list[str]:
    with database.read() as conn:
        rows, _ = list_sessions(conn, tenant, SessionFilter(**filters), limit=500)  # type: ignore[arg-type]
    return [row.id for row in rows]


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


def test_a_session_that_is_decided_upon_meanwhile_is_not_deleted(database: Database) -> None:
    """Or its new dispatch_no would stay in the queue: only the dispatches that are known are erased."""
    id = make(database)
    with database.begin() as conn:
        set_state(conn, id, "waiting_approval")

    def delete() -> None:
        with database.begin() as conn:
            delete_session(conn, "", id)

    with ThreadPoolExecutor(1) as threads:
        with database.begin() as conn:
            decide(conn, lock_session(conn, id, tenant=""), Decision(action="approve", by="ann"))
            deletion = threads.submit(delete)
            time.sleep(0.3)
        with pytest.raises(ConflictError, match="queued"):
            deletion.result()
    assert ids(database) == [id]


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
