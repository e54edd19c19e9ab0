"""Events: dense numbers whoever writes, each key once, nothing from a worker that has lost the session."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import JsonValue

from service.db.engine import Database
from service.errors import CancelledError, FencedError
from service.sessions.event_store import events_after
from service.sessions.lifecycle import request_cancel
from service.sessions.store import lock_session
from tests.unit.service.db.making import append_event, make, take


def event(key: str) -> dict[str, JsonValue]:
    return {"key": key, "at": 1.0, "node": "n", "kind": "tool", "name": "search"}


def append(database: Database, id: str, key: str, fence: int | None = None) -> int | None:
    with database.begin() as conn:
        return append_event(conn, id, event(key), fence)


def seqs(database: Database, id: str, after: int = 0) -> list[int]:
    with database.read() as conn:
        return [event.seq for event in events_after(conn, id, after)]


def test_an_event_sent_twice_is_kept_once(database: Database) -> None:
    id = make(database)
    assert [append(database, id, key) for key in ("a", "a", "b")] == [2, None, 3]
    with database.read() as conn:
        told = events_after(conn, id, 1)
    assert [(event.key, event.node, event.kind, event.content) for event in told] == [
        ("a", "n", "tool", {"name": "search"}),
        ("b", "n", "tool", {"name": "search"}),
    ]


def test_numbers_are_dense_under_concurrent_writers(database: Database) -> None:
    id = make(database)
    keys = [f"{number % 30}" for number in range(120)]  # every key four times, from eight threads
    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(lambda key: append(database, id, key), keys))
    assert sorted(number for number in got if number) == list(range(2, 32))
    assert seqs(database, id) == list(range(1, 32))


def test_a_worker_that_lost_the_session_writes_nothing(database: Database) -> None:
    id = make(database)
    old = take(database, id)
    new = take(database, id, worker="w2")
    with pytest.raises(FencedError, match="w2"):
        append(database, id, "a", old.fence)
    assert append(database, id, "a", new.fence) == 3


def test_a_worker_hears_of_a_cancel_at_its_next_event(database: Database) -> None:
    id = make(database)
    held = take(database, id)
    with database.begin() as conn:
        request_cancel(conn, lock_session(conn, id, tenant=""))
    with pytest.raises(CancelledError):
        append(database, id, "a", held.fence)
    assert seqs(database, id) == [1, 2]


def test_figures_that_are_no_numbers_are_kept_as_null(database: Database) -> None:
    id = make(database)
    with database.begin() as conn:
        append_event(conn, id, {**event("a"), "x": float("nan"), "y": float("inf"), "z": 1.5})
        told = events_after(conn, id, 1)
    assert told[0].content == {"name": "search", "x": None, "y": None, "z": 1.5}
