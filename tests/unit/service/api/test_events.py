"""Events over HTTP: each once and in order, from whatever point and whichever replica."""

import asyncio
import json
from typing import Any

import anyio
import pytest
from sqlalchemy.exc import OperationalError

from service.api import events as sse
from service.api import state as watch
from service.db.sessions import append_event
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
    assert [one["seq"] for one in events] == list(range(1, 8))
    assert events[-1]["content"] == {"state": "cancelled"}
    assert events[1]["content"]["text"] == "line\n0"


@pytest.mark.parametrize("known", range(7))
def test_a_stream_goes_on_after_what_is_known_from_any_replica(serve: Serve, known: int) -> None:
    first, second = serve(), serve()
    id = first.submit()
    tell(first, id, 5)
    first.client.post(f"/v1/sessions/{id}/cancel")
    path = f"/v1/sessions/{id}/events"
    by_header = second.client.get(path, headers={"Last-Event-ID": str(known)})
    by_query = second.client.get(path, params={"after": known})
    for answer in (by_header, by_query):
        assert [one["seq"] for one in parse(answer.text)] == list(range(known + 1, 8))


def test_the_header_wins_over_the_address(served: Served, ended: str) -> None:
    answer = served.client.get(f"/v1/sessions/{ended}/events?after=1", headers={"Last-Event-ID": "6"})
    assert [one["seq"] for one in parse(answer.text)] == [7]


def test_nothing_more_is_told_to_who_knows_all(served: Served, ended: str) -> None:
    answer = served.client.get(f"/v1/sessions/{ended}/events", headers={"Last-Event-ID": "7"})
    assert (answer.status_code, answer.text) == (204, "")


def test_events_are_to_be_had_page_by_page(served: Served, ended: str) -> None:
    headers = {"Accept": "application/json"}
    page = served.client.get(f"/v1/sessions/{ended}/events?after=3", headers=headers).json()
    assert [one["seq"] for one in page["items"]] == [4, 5, 6, 7]
    assert (page["next_after"], page["ended"]) == (7, True)


def test_more_events_than_one_look_holds_all_come(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "AT_ONCE", 4)
    monkeypatch.setattr(sse.look, "__defaults__", (4,))
    id = served.submit()
    tell(served, id, 30)
    served.client.post(f"/v1/sessions/{id}/cancel")
    answer = served.client.get(f"/v1/sessions/{id}/events")
    assert [one["seq"] for one in parse(answer.text)] == list(range(1, 33))


def test_a_session_that_went_on_after_its_end_is_told_whole(served: Served) -> None:
    id = served.submit()
    served.end(id, "completed", report={"proposals": []})
    served.client.post(f"/v1/sessions/{id}/decision", json={"action": "approve"})
    served.end(id, "completed", report={"proposals": []})
    states = [one["content"]["state"] for one in parse(served.client.get(f"/v1/sessions/{id}/events").text)]
    assert states == ["queued", "running", "completed", "queued", "running", "completed"]


@pytest.mark.parametrize("given", ["-1", "one", "1e3", "²", "99999999999"])
def test_a_wrong_last_event_id_is_named(served: Served, ended: str, given: str) -> None:
    headers = {b"Last-Event-ID": given.encode()}
    answer = served.client.get(f"/v1/sessions/{ended}/events", headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


def test_a_quiet_stream_shows_that_it_lives_and_ends_when_the_server_stops(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    monkeypatch.setattr(sse, "HEARTBEAT_S", 0.03)
    id = served.submit()

    async def follow() -> list[str]:
        texts = []
        first = sse.look(served.app, "", id, 0)
        async for text in sse.stream(served.app, "", id, first, 0):
            texts.append(text)
            if texts.count(": heartbeat\n\n") == 2:
                served.app.stopping.set()
        return texts

    texts = anyio.run(follow)
    assert texts[0].startswith("retry: ")
    assert [one["seq"] for one in parse("".join(texts))] == [1]


def test_a_stream_tells_what_happens_while_it_is_open(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    id = served.submit()

    async def follow() -> list[dict[str, Any]]:
        text = ""
        async for part in sse.stream(served.app, "", id, sse.look(served.app, "", id, 0), 0):
            text += part
            if len(parse(text)) == 1:
                served.end(id, "failed")
        return parse(text)

    states = [one["content"]["state"] for one in anyio.run(follow)]
    assert states == ["queued", "running", "failed"]


def test_a_stream_of_a_session_that_is_deleted_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    id = served.submit()
    first = sse.look(served.app, "", id, 0)
    served.client.post(f"/v1/sessions/{id}/cancel")
    served.client.delete(f"/v1/sessions/{id}")

    async def follow() -> int:
        return len([text async for text in sse.stream(served.app, "", id, first, 0)])

    assert anyio.run(follow) == 2


def test_a_stream_ends_quietly_when_the_database_is_away(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    id = served.submit()
    first = sse.look(served.app, "", id, 0)

    def fail() -> None:
        raise OperationalError("SELECT 1", {}, Exception("gone"))

    monkeypatch.setattr(served.app.database, "read", fail)

    async def follow() -> int:
        return len([text async for text in sse.stream(served.app, "", id, first, 0)])

    assert anyio.run(follow) == 2


def test_many_streams_wait_in_one_look_and_only_those_with_news_wake(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.01)
    monkeypatch.setattr(watch, "AT_A_TIME", 3)
    ids = [served.submit() for _ in range(7)]
    tell(served, ids[5], 1)
    looks: list[int] = []
    real = watch.EventWatcher._look

    def counted(self: watch.EventWatcher, wanted: list[str]) -> dict[str, int]:
        looks.append(len(wanted))
        return real(self, wanted)

    monkeypatch.setattr(watch.EventWatcher, "_look", counted)

    async def wait() -> list[bool]:
        waits = (served.app.watch.wait(id, 1, 0.5) for id in [*ids, "deleted"])
        return list(await asyncio.gather(*waits))

    assert asyncio.run(wait()) == [False] * 5 + [True, False, True]
    assert looks[0] == 8
    assert len(looks) < 60
