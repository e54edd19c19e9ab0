"""Vectors: of an endpoint over HTTP, played by a real local server, and of the local model, in NumPy."""

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from tools.errors import InputError
from tools.kb import EmbeddingError, find_local_embedder, open_seed
from tools.kb.embed import (
    MINILM_PACKAGE,
    Embedder,
    EndpointEmbedder,
    MiniLM,
    _shipped,
    gist,
    text_key,
)
from tools.kb.seed import load_seed

KEY = "sk-very-secret-0123456789"
Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@contextmanager
def served(answer: Answer) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    requests: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append({"path": self.path, "key": self.headers.get("Authorization"), **body})
            status, reply = answer(body)
            data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Keeps the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # waited for when it closes
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1/", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def vectors_reply(*vectors: object) -> dict[str, Any]:
    return {"data": [{"index": index, "embedding": vector} for index, vector in enumerate(vectors)]}


@pytest.mark.parametrize(
    "answer",
    [
        (401, {"error": f"Incorrect API key provided: {KEY}"}),
        (429, {"error": "slow down"}),
        (500, b"oops"),
        (302, b""),
        (200, b"<html>"),
        (200, []),
        (200, {"data": "none"}),
        (200, {"data": [{"index": 0, "embedding": [1.0]}] * 2}),
        (200, vectors_reply()),
        (200, vectors_reply([1.0])),
        (200, vectors_reply([1.0], [1.0, 2.0])),
        (200, vectors_reply([0.0], [1.0])),
        (200, vectors_reply(["x"], [1.0])),
        (200, vectors_reply(None, [1.0])),
    ],
)
def test_a_bad_answer_is_one_error_without_the_key(
    answer: tuple[int, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with served(lambda _: answer) as (url, requests), pytest.raises(EmbeddingError) as error:
        EndpointEmbedder(url, "embed-1", KEY).embed(["a", "b"])
    assert [(request["key"], request["input"]) for request in requests] == [(f"Bearer {KEY}", ["a", "b"])]
    assert url.rstrip("/") in str(error.value)
    assert KEY not in str(error.value) + caplog.text
    assert error.value.__cause__ is None


def test_an_endpoint_that_does_not_answer_is_left_after_the_timeout() -> None:
    leave = threading.Event()

    def hang(_: dict[str, Any]) -> tuple[int, Any]:
        leave.wait(20)
        return 200, {}

    with served(hang) as (url, requests):
        try:
            with pytest.raises(EmbeddingError, match=r"ReadTimeout within 0\.1 s"):
                EndpointEmbedder(url, "embed-1", KEY, timeout_s=0.1).embed(["a"])
        finally:
            leave.set()
    assert len(requests) == 1


def test_the_key_shows_nowhere() -> None:
    embedder = EndpointEmbedder("https://example.org/v1", "embed-1", KEY)
    assert KEY not in repr(embedder) + str(embedder) + embedder.identity
    assert embedder.identity == "embed-1 at https://example.org/v1"


@pytest.mark.parametrize(
    ("field", "value"), [("base_url", "https://user:pw@example.org"), ("model", ""), ("timeout_s", 0)]
)
def test_a_wrong_setting_names_its_field(field: str, value: object) -> None:
    """Which addresses are refused is in tests/unit/test_names.py."""
    settings: dict[str, Any] = {"base_url": "https://example.org/v1", "model": "embed-1"}
    with pytest.raises(InputError) as error:
        EndpointEmbedder(**(settings | {field: value}))
    assert error.value.path == field
    assert "pw@" not in str(error.value)


QUICKSTART = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


@pytest.fixture(scope="module")
def minilm() -> Embedder:
    pytest.importorskip(MINILM_PACKAGE, reason="the package with the model is not installed")
    embedder = find_local_embedder()
    assert embedder is not None
    return embedder


def test_vectors_are_those_published_and_those_of_the_reference_implementation(minilm: Embedder) -> None:
    # sbert.net, "Quickstart", for all-MiniLM-L6-v2; printed there with four digits.
    vectors = np.array(minilm.embed(QUICKSTART))
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert np.allclose(vectors @ vectors.T, published, atol=5e-5)
    # sentence-transformers 6.2.0 with PyTorch 2.13.0 on this model: the largest difference was 2e-7.
    expected = [0.01919574, 0.12008539, 0.15959834, 0.0670659, 0.05007485, -0.02591869]
    assert vectors.shape == (3, 384)
    assert vectors[0, :6] == pytest.approx(expected, abs=1e-6)


@pytest.mark.skipif(find_local_embedder() is None, reason="the embedding model is not installed")
def test_every_entry_of_the_seed_comes_with_its_vector() -> None:
    """If this fails: `make seed-vectors`."""
    texts = [gist(entry) for entry in load_seed().entries]
    assert [text for text in texts if text_key(text) not in _shipped()] == []
    shipped, computed = MiniLM().embed(texts[:2]), MiniLM().compute(texts[:2])
    assert np.allclose(shipped, computed, atol=1e-3)


@pytest.mark.skipif(find_local_embedder() is None, reason="the embedding model is not installed")
def test_a_fresh_installation_searches_by_meaning() -> None:
    base = open_seed(embedder=MiniLM())
    hits = base.search("machines wait for each other while summing up what they learnt")
    assert base.limitation is None
    assert any("vector" in hit.matched for hit in hits)
