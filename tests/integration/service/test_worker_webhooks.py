"""Webhooks against a real receiver: signed, repeated until it answers, never sent inside unless allowed."""

import itertools
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from service.jobs.webhooks import PER_TENANT, Webhooks, signature
from service.sessions.lifecycle import set_state
from service.settings import Settings
from tests.integration.nightly.receivers import Hook
from tests.integration.service.at_work import Desk, settings_for, wait_for, working
from tests.unit.service.db.making import list_deliveries

SECRET = "of-the-receiver"


@pytest.fixture
def receiver() -> Iterator[Hook]:
    with Hook() as hook:
        yield hook


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path, webhook_secret=SECRET, webhook_private=True)


def deliveries(desk: Desk, id: str) -> list[sa.Row[Any]]:
    with desk.database.read() as conn:
        return list_deliveries(conn, id)


def send_due(webhooks: Webhooks) -> None:
    for sent in webhooks.start_due():
        sent.result()


def fail(desk: Desk, url: str) -> str:
    id = desk.submit(webhook=url)
    with desk.database.begin() as conn:
        set_state(conn, id, "failed", error={"kind": "infeasible", "message": "too small", "field": None})
    return id


def test_the_end_of_a_session_is_sent_and_signed(settings: Settings, desk: Desk, receiver: Hook) -> None:
    with working(settings):
        id = desk.submit(webhook=f"{receiver.url}/hook?x=1", labels={"team": "a"})
        desk.wait(id)
        wait_for(lambda: [delivery for delivery in deliveries(desk, id) if delivery.delivered_at])
    path, headers, body = receiver.got[0]
    told = json.loads(body)
    assert path == "/hook?x=1"
    assert (told["session"], told["state"], told["labels"]) == (id, "completed", {"team": "a"})
    assert told["id"] == headers["X-Asap-Delivery"]
    stamp = headers["X-Asap-Timestamp"]
    assert abs(int(stamp) - time.time()) < 60
    assert headers["X-Asap-Signature"] == f"sha256={signature(SECRET.encode(), stamp, body)}"
    assert headers["X-Asap-Signature"] != f"sha256={signature(b'another', stamp, body)}"


def test_a_receiver_that_fails_is_asked_again_with_pauses(
    settings: Settings, desk: Desk, receiver: Hook
) -> None:
    receiver.answers = [503, 302]
    id = fail(desk, receiver.url)
    webhooks = Webhooks(settings, desk.database, first_pause_s=0.01)
    waits = []
    for _ in range(3):
        send_due(webhooks)
        row = deliveries(desk, id)[0]
        waits.append(row.due_at)
        time.sleep(0.05)
    assert [json.loads(body)["id"] for _, _, body in receiver.got] == [row.id] * 3
    assert (row.attempts, row.answer, waits[-1]) == (3, "200 OK", None)
    assert waits[0] is not None
    assert waits[1] is not None


@contextmanager
def odd_receiver(begin: bytes, repeat: bytes = b"") -> Iterator[tuple[str, list[bytes]]]:
    """One that says this once, and that again and again for as long as anybody listens.

    Its address, and what it was asked and has said.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ended, said = threading.Event(), list[bytes]()
        listening.settimeout(30)

        def answer() -> None:
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    said.append(_request(connection))
                    for part in itertools.chain([begin], itertools.repeat(repeat) if repeat else ()):
                        connection.sendall(part)
                        said.append(part)
                        if ended.wait(0.05):
                            break

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/", said
        ended.set()
        thread.join()


def _request(connection: socket.socket) -> bytes:
    """All of it: one who closes with something unread resets the connection, and what it said is lost."""
    head, _, body = connection.recv(10_000).partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.I)
    while length and len(body) < int(length[1]):
        body += connection.recv(10_000)
    return head + b"\r\n\r\n" + body


def test_a_receiver_that_answers_for_ever_is_left_and_asked_again(
    settings: Settings, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.jobs.webhooks.MAX_REQUEST_S", 0.5)
    with odd_receiver(b"HTTP/1.1 ", repeat=b"x") as (url, said):
        id = fail(desk, url)
        begun = time.monotonic()
        send_due(Webhooks(settings, desk.database))
        assert 0.5 <= time.monotonic() - begun < 30
        asked, *answer = said
    assert asked.startswith(b"POST /")
    assert len(answer) > 3, "it did not go on answering"
    row = deliveries(desk, id)[0]
    assert (row.attempts, row.delivered_at) == (1, None)
    assert row.due_at is not None


@pytest.mark.parametrize(
    ("words", "kept"),
    [(b"HTTP/1.1 200 \x00\x1b" + b"x" * 5000 + b"\r\n\r\n", "200 ??xxx"), (b"\x00\x1b\r\n", "??")],
)
def test_what_a_receiver_says_is_kept_short_and_without_control_characters(
    words: bytes, kept: str, settings: Settings, desk: Desk
) -> None:
    with odd_receiver(words) as (url, said):
        id = fail(desk, url)
        send_due(Webhooks(settings, desk.database))
    assert said[1:] == [words]
    answer = str(deliveries(desk, id)[0].answer)
    assert answer.startswith(kept)
    assert answer.isprintable()
    assert len(answer) < 500


def test_an_inner_address_is_never_asked(settings: Settings, desk: Desk, receiver: Hook) -> None:
    strict = settings.model_copy(update={"webhook_private": False})
    by_number = fail(desk, receiver.url)
    by_name = fail(desk, receiver.url.replace("127.0.0.1", "localhost.localdomain"))
    for _ in range(2):
        send_due(Webhooks(strict, desk.database))
    assert receiver.got == []
    rows = [deliveries(desk, id)[0] for id in (by_number, by_name)]
    assert [(row.attempts, row.delivered_at) for row in rows] == [(1, None)] * 2, "both were to be sent"
    assert rows[0].due_at is None


def test_slow_receivers_delay_nobody_elses(settings: Settings, desk: Desk, receiver: Hook) -> None:
    """A receiver that takes the connection and says nothing holds a sender for seconds."""
    with ExitStack() as stack, socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        slow = [fail(desk, url) for _ in range(3 * PER_TENANT)]
        webhooks = Webhooks(settings, desk.database)
        held = webhooks.start_due()
        assert len(held) == PER_TENANT
        silent.settimeout(30)
        connections = [stack.enter_context(silent.accept()[0]) for _ in held]
        assert all(connection.recv(10_000).startswith(b"POST /") for connection in connections)
        id = desk.submit(tenant="other", webhook=receiver.url)
        with desk.database.begin() as conn:
            set_state(conn, id, "failed", error={"kind": "failed", "message": "x", "field": None})
        for sent in webhooks.start_due():
            sent.result()
        assert [bool(delivery.delivered_at) for delivery in deliveries(desk, id)] == [True]
        assert not any(sent.done() for sent in held), "nobody was held up"
        assert [delivery.delivered_at for delivery in deliveries(desk, slow[0])] == [None]
