"""Vectors over HTTP: a real local server plays good and bad endpoints."""

import json
import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tools.errors import InputError
from tools.kb import EmbeddingError
from tools.kb.embed import EndpointEmbedder

KEY = "sk-very-secret-0123456789"
Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@contextmanager
def served(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
            status, said = answer(body)
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Keeps the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def good(body: dict[str, Any]) -> tuple[int, Any]:
    data = [{"index": i, "embedding": [3.0 + len(text), 4.0]} for i, text in enumerate(body["input"])]
    return 200, {"data": data[::-1]}


def test_vectors_come_in_the_order_of_the_texts_and_of_unit_length() -> None:
    with served(good) as (url, asked):
        vectors = EndpointEmbedder(url, "embed-1", KEY).embed(["", "abc"])
    assert vectors[0] == pytest.approx([0.6, 0.8])
    assert vectors[1] == pytest.approx([6 / math.hypot(6, 4), 4 / math.hypot(6, 4)])
    assert asked[0]["path"] == "/v1/embeddings"
    assert asked[0]["key"] == f"Bearer {KEY}"
    assert (asked[0]["model"], asked[0]["input"]) == ("embed-1", ["", "abc"])


def test_many_texts_go_in_several_requests() -> None:
    with served(good) as (url, asked):
        assert len(EndpointEmbedder(url, "embed-1").embed(["x"] * 130)) == 130
    assert [len(one["input"]) for one in asked] == [64, 64, 2]
    assert asked[0]["key"] is None


@pytest.mark.parametrize(
    "answer",
    [
        (401, {"error": f"Incorrect API key provided: {KEY}"}),
        (429, {"error": "slow down"}),
        (500, b"oops"),
        (302, b""),
        (200, b"<html>"),
        (200, []),
        (200, {"data": []}),
        (200, {"data": [{"index": 0, "embedding": [1.0]}]}),
        (200, {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}),
        (200, {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]}),
        (200, {"data": [{"index": 0, "embedding": [0.0]}, {"index": 1, "embedding": [1.0]}]}),
        (200, {"data": [{"index": 0, "embedding": ["x"]}, {"index": 1, "embedding": [1.0]}]}),
        (200, {"data": [{"index": 0, "embedding": None}, {"index": 1, "embedding": [1.0]}]}),
        (200, {"data": "none"}),
    ],
)
def test_a_bad_answer_is_one_error_without_the_key(
    answer: tuple[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with served(lambda _: answer) as (url, _), pytest.raises(EmbeddingError) as error:
        EndpointEmbedder(url, "embed-1", KEY).embed(["a", "b"])
    assert url.rstrip("/") in str(error.value)
    assert KEY not in str(error.value) + caplog.text
    assert error.value.__cause__ is None


def test_an_endpoint_that_is_not_there_is_an_embedding_error() -> None:
    with pytest.raises(EmbeddingError, match="ConnectError"):
        EndpointEmbedder("http://127.0.0.1:9", "embed-1", KEY, timeout_s=2).embed(["a"])


def test_an_endpoint_that_does_not_answer_is_left_after_the_timeout() -> None:
    leave = threading.Event()

    def hang(_: dict[str, Any]) -> tuple[int, Any]:
        leave.wait(20)
        return 200, {}

    with served(hang) as (url, _):
        try:
            with pytest.raises(EmbeddingError, match=r"ReadTimeout within 0\.1 s"):
                EndpointEmbedder(url, "embed-1", KEY, timeout_s=0.1).embed(["a"])
        finally:
            leave.set()


def test_the_key_shows_nowhere() -> None:
    embedder = EndpointEmbedder("https://example.org/v1", "embed-1", KEY)
    assert KEY not in repr(embedder) + str(embedder) + embedder.identity
    assert embedder.identity == "embed-1 at https://example.org/v1"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"base_url": "ftp://example.org"}, "base_url"),
        ({"base_url": "example.org"}, "base_url"),
        ({"base_url": "https://user:pw@example.org"}, "base_url"),
        ({"base_url": "ftp://user:pw@example.org"}, "base_url"),
        ({"base_url": "user:pw@example.org"}, "base_url"),
        ({"base_url": "https://[example.org"}, "base_url"),
        ({"base_url": "https://example.org?key=x"}, "base_url"),
        ({"model": ""}, "model"),
        ({"timeout_s": 0}, "timeout_s"),
    ],
)
def test_a_wrong_setting_names_its_field(changes: dict[str, Any], field: str) -> None:
    wanted: dict[str, Any] = {"base_url": "https://example.org/v1", "model": "embed-1"}
    with pytest.raises(InputError) as error:
        EndpointEmbedder(**(wanted | changes))
    assert error.value.field == field
    assert "pw@" not in str(error.value)
