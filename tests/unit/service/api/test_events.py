"""Events over HTTP: each once and in order, from whatever point and whichever replica."""

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from sqlalchemy.exc import OperationalError

from service.access.auth import LOCAL
from service.http import events as watch
from service.sessions import event_store
from service.sessions import events as sse
from tests.unit.service.db.making import append_event
from tests.unit.service.served import SCENARIO, Serve, Served

HEARTBEAT = ": heartbeat\n\n"


def tell(served: Served, id: str, count: int) -> None:
    with served.app.database.begin() as conn:
        for number in range(count):
            event = {"key": f"k{number}", "node": "analyzer", "kind": "tool", "text": f"line\n{number}"}
            append_event(conn, id, event)


def parse(text: str) -> list[dict[str, Any]]:
    """As a browser does: blocks apart by empty lines, `id:` and `data:` lines."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            event = json.loads(fields["data"])
            assert event["seq"] == int(fields["id"])
            found.append(event)
    return found


def test_a_stream_goes_on_after_what_is_known_from_any_replica(serve: Serve) -> None:
    first, second = serve(), serve()
    id = first.submit()
    tell(first, id, 5)
    first.client.post(f"/v1/sessions/{id}/cancel")
    path = f"/v1/sessions/{id}/events"
    for known in range(7):
        by_header = second.client.get(path, headers={"Last-Event-ID": str(known)})
        by_query = second.client.get(path, params={"after": known})
        for answer in (by_header, by_query):
            assert [event["seq"] for event in parse(answer.text)] == list(range(known + 1, 8))
    both = second.client.get(f"{path}?after=1", headers={"Last-Event-ID": "6"})
    assert [event["seq"] for event in parse(both.text)] == [7], "the header wins"
    all_known = second.client.get(path, headers={"Last-Event-ID": "7"})
    assert (all_known.status_code, all_known.text) == (204, "")


def test_more_events_than_one_batch_holds_all_come(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "AT_ONCE", 4)
    id = served.submit()
    tell(served, id, 30)
    served.client.post(f"/v1/sessions/{id}/cancel")
    answer = served.client.get(f"/v1/sessions/{id}/events")
    assert [event["seq"] for event in parse(answer.text)] == list(range(1, 33))


def test_a_session_that_went_on_after_its_end_is_shown_whole(served: Served) -> None:
    id = served.submit()
    served.end(id, "completed", report={"proposals": [], "scenario": SCENARIO})
    served.client.post(f"/v1/sessions/{id}/decision", json={"action": "approve"})
    served.end(id, "completed", report={"proposals": []})
    states = [
        event["content"]["state"] for event in parse(served.client.get(f"/v1/sessions/{id}/events").text)
    ]
    assert states == ["queued", "running", "completed", "queued", "running", "completed"]


@pytest.fixture
def _polls_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.03)


def follow(
    served: Served, id: str, at: Callable[[list[str]], None], before: Callable[[], object]
) -> list[str]:
    """The texts of a stream to its end; `before` happens between the first look and the stream."""

    async def read() -> list[str]:
        texts: list[str] = []
        streams = served.app.get(sse.EventStreams)
        first = streams.read("", id, 0)
        before()
        async for text in streams.follow(LOCAL, id, first, 0):
            texts.append(text)
            at(texts)
        return texts

    return anyio.run(read)


def nothing(*_: object) -> None: ...


@pytest.mark.usefixtures("_polls_at_once")
def test_a_quiet_stream_shows_that_it_lives_and_ends_when_the_server_stops(served: Served) -> None:
    def stop(texts: list[str]) -> None:
        if texts.count(HEARTBEAT) == 2:
            served.app.stopping.set()

    texts = follow(served, served.submit(), stop, nothing)
    assert texts[0].startswith("retry: ")
    assert [event["seq"] for event in parse("".join(texts))] == [1]


@pytest.mark.usefixtures("_polls_at_once")
@pytest.mark.parametrize("loss", ["session", "database"])
def test_a_stream_whose_session_or_database_is_gone_ends_quietly(
    served: Served, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    id = served.submit()

    def fail() -> None:
        raise OperationalError("SELECT 1", {}, Exception("gone"))

    def lose() -> None:
        if loss == "database":
            monkeypatch.setattr(served.app.database, "read", fail)
        else:
            served.client.post(f"/v1/sessions/{id}/cancel")
            served.client.delete(f"/v1/sessions/{id}")

    texts = follow(served, id, nothing, lose)
    assert len([text for text in texts if text != HEARTBEAT]) == 2


def test_many_streams_wait_in_one_query_and_only_those_with_news_wake(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    monkeypatch.setattr(event_store, "SESSIONS_AT_ONCE", 3)
    ids = [served.submit() for _ in range(7)]
    tell(served, ids[5], 1)
    looks: list[int] = []

    def counted(wanted: Sequence[str]) -> dict[str, int]:
        looks.append(len(wanted))
        with served.app.database.read() as conn:
            return event_store.last_events(conn, wanted)

    watcher = watch.EventWatcher(counted, served.app.stopping)

    async def wait() -> list[bool]:
        waits = (watcher.wait(id, 1, 0.5) for id in [*ids, "deleted"])
        return list(await asyncio.gather(*waits))

    assert asyncio.run(wait()) == [False] * 5 + [True, False, True]
    assert looks[0] == 8
    assert len(looks) < 60
