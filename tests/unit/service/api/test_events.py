"""Events over HTTP: each once and in order, from whatever point and whichever replica."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from sqlalchemy.exc import OperationalError

from service.api import events as sse
from service.api import state as watch
from service.auth import LOCAL
from tests.unit.service.db.making import append_event
from tests.unit.service.served import Serve, Served


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


@pytest.fixture
def ended(served: Served) -> str:
    """A session with 1 queued, 2..6 told, 7 cancelled."""
    id = served.submit()
    tell(served, id, 5)
    served.client.post(f"/v1/sessions/{id}/cancel")
    return id


def test_a_stream_has_every_event_and_ends_with_the_session(served: Served, ended: str) -> None:
    answer = served.client.get(f"/v1/sessions/{ended}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["Cache-Control"] == "no-store"
    events = parse(answer.text)
    assert [event["seq"] for event in events] == list(range(1, 8))
    assert events[-1]["content"] == {"state": "cancelled"}
    assert events[1]["content"]["text"] == "line\n0"


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


def test_events_are_to_be_had_page_by_page(served: Served, ended: str) -> None:
    headers = {"Accept": "application/json"}
    page = served.client.get(f"/v1/sessions/{ended}/events?after=3", headers=headers).json()
    assert [event["seq"] for event in page["items"]] == [4, 5, 6, 7]
    assert (page["next_after"], page["ended"]) == (7, True)


def test_more_events_than_one_batch_holds_all_come(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "AT_ONCE", 4)
    id = served.submit()
    tell(served, id, 30)
    served.client.post(f"/v1/sessions/{id}/cancel")
    answer = served.client.get(f"/v1/sessions/{id}/events")
    assert [event["seq"] for event in parse(answer.text)] == list(range(1, 33))


def test_a_session_that_went_on_after_its_end_is_shown_whole(served: Served) -> None:
    id = served.submit()
    served.end(id, "completed", report={"proposals": []})
    served.client.post(f"/v1/sessions/{id}/decision", json={"action": "approve"})
    served.end(id, "completed", report={"proposals": []})
    states = [
        event["content"]["state"] for event in parse(served.client.get(f"/v1/sessions/{id}/events").text)
    ]
    assert states == ["queued", "running", "completed", "queued", "running", "completed"]


@pytest.mark.parametrize("given", ["-1", "one", "1e3", "²", "99999999999"])
def test_a_wrong_last_event_id_is_named(served: Served, ended: str, given: str) -> None:
    headers = {b"Last-Event-ID": given.encode()}
    answer = served.client.get(f"/v1/sessions/{ended}/events", headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


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
        first = sse.read_batch(served.app, "", id, 0)
        before()
        async for text in sse.stream(served.app, LOCAL, id, first, 0):
            texts.append(text)
            at(texts)
        return texts

    return anyio.run(read)


def nothing(*_: object) -> None: ...


@pytest.mark.usefixtures("_polls_at_once")
def test_a_quiet_stream_shows_that_it_lives_and_ends_when_the_server_stops(served: Served) -> None:
    def stop(texts: list[str]) -> None:
        if texts.count(": heartbeat\n\n") == 2:
            served.app.stopping.set()

    texts = follow(served, served.submit(), stop, nothing)
    assert texts[0].startswith("retry: ")
    assert [event["seq"] for event in parse("".join(texts))] == [1]


@pytest.mark.usefixtures("_polls_at_once")
def test_a_stream_reports_what_happens_while_it_is_open(served: Served) -> None:
    id = served.submit()

    def fail_once(texts: list[str]) -> None:
        if len(parse("".join(texts))) == 1 and served.state(id) == "queued":
            served.end(id, "failed")

    events = parse("".join(follow(served, id, fail_once, nothing)))
    assert [event["content"]["state"] for event in events] == ["queued", "running", "failed"]


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

    assert len(follow(served, id, nothing, lose)) == 2


def test_many_streams_wait_in_one_query_and_only_those_with_news_wake(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    monkeypatch.setattr(watch, "AT_A_TIME", 3)
    ids = [served.submit() for _ in range(7)]
    tell(served, ids[5], 1)
    looks: list[int] = []
    real = watch.EventWatcher._last_events

    def counted(self: watch.EventWatcher, wanted: list[str]) -> dict[str, int]:
        looks.append(len(wanted))
        return real(self, wanted)

    monkeypatch.setattr(watch.EventWatcher, "_last_events", counted)

    async def wait() -> list[bool]:
        waits = (served.app.watch.wait(id, 1, 0.5) for id in [*ids, "deleted"])
        return list(await asyncio.gather(*waits))

    assert asyncio.run(wait()) == [False] * 5 + [True, False, True]
    assert looks[0] == 8
    assert len(looks) < 60
