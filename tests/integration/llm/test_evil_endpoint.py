"""A broken or evil endpoint: whatever it sends, the rules answer within the deadline and the budget."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from graph.agents import LanguageModel
from graph.context import Context, Limits
from graph.events import Reasoned
from graph.model import Endpoint
from tests.unit.graph.cases import data_of, run, small
from tools.kb import open_seed

DEADLINE_S = 1.5
TOKENS = 3000
Send = Callable[[bytes], None]
Behaviour = Callable[[Send], None]
RULES = data_of(run(small())[0])


def _ok(body: bytes, *headers: str) -> bytes:
    head = ["HTTP/1.1 200 OK", "Content-Type: application/json", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


def _completion(message: Any, usage: Any = None, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice],
            "usage": usage} | more  # fmt: skip


def _says(content: Any, usage: Any = None, **more: Any) -> Behaviour:  # noqa: ANN401 - any JSON
    body = json.dumps(_completion({"role": "assistant", "content": content}, usage, **more))
    return lambda send: send(_ok(body.encode()))


def _calls(count: int, **call: Any) -> Behaviour:  # noqa: ANN401 - any JSON
    whole = {"id": "c", "type": "function", "function": {"name": "stragglers", "arguments": "{}"}} | call
    message = {"role": "assistant", "content": None, "tool_calls": [whole] * count}
    return lambda send: send(_ok(json.dumps(_completion(message)).encode()))


def _raw(body: bytes, *headers: str) -> Behaviour:
    return lambda send: send(_ok(body, *headers))


def _trickle(first: bytes, piece: bytes, pause_s: float = 0.05) -> Behaviour:
    def behave(send: Send) -> None:
        send(first)
        while True:
            send(piece)
            time.sleep(pause_s)

    return behave


def _flood(first: bytes, piece: bytes) -> Behaviour:
    return _trickle(first, piece, pause_s=0.0)


def _hang(send: Send) -> None:
    time.sleep(60)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
USAGE = {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}
BEHAVIOURS: dict[str, Behaviour] = {
    "says nothing": _hang,
    "trickles headers": _trickle(HEAD, b"X-Pad: a\r\n"),
    "trickles the body": _trickle(HEAD + b"Content-Length: 1000000\r\n\r\n", b" "),
    "trickles the body of a refusal": _trickle(b"HTTP/1.1 429 Wait\r\nContent-Length: 1000000\r\n\r\n", b" "),
    "floods the body of a refusal": _flood(b"HTTP/1.1 429 Wait\r\n\r\n", b" " * 65536),
    "continues for ever": _trickle(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "floods headers": _flood(HEAD, b"X-Pad: " + b"a" * 4000 + b"\r\n"),
    "floods the body": _flood(HEAD + b"\r\n", b" " * 65536),
    "floods events": _flood(EVENTS, b'data: {"choices": []}\n\n' * 500),
    "closes at once": lambda send: None,
    "is no HTTP": _flood(b"", b"SSH-2.0-OpenSSH_9.6\r\n"),
    "is half an answer": lambda send: send(_ok(b"{" * 500)[:-100]),
    "thinks for ever": _says("<think>" * 60_000),
    "opens objects": _says('{"a":' * 80_000),
    "is a gzip bomb": _raw(gzip.compress(bytes(200 << 20), 9), "Content-Encoding: gzip"),
    "is deeply nested": _raw(b"[" * 2_000_000),
    "has a long number": _raw(b'{"choices": ' + b"9" * 2_000_000 + b"}"),
    "negative usage": _says("no", {"prompt_tokens": -(10**9), "completion_tokens": -1, "total_tokens": -5}),
    "usage that is no number": _says("no", dict.fromkeys(USAGE, float("nan"))),
    "endless usage": _says("no", dict.fromkeys(USAGE, 10**300)),
    "usage in words": _says("no", {"prompt_tokens": "many", "completion_tokens": [], "total_tokens": {}}),
    "content of a wrong type": _says({"a": [1, None]}),
    "no message": _raw(json.dumps(_completion(None)).encode()),
    "calls of a wrong type": _calls(1, function=["x"], id=7),
    "arguments of a wrong type": _calls(1, function={"name": 5, "arguments": {"a": 1}}),
    "a thousand calls": _calls(1000),
    "an unknown tool": _calls(1, function={"name": "rm -rf /", "arguments": "{}"}),
    "surrogates and NUL": _says('{"cause": "\ud800\x00", "step": "\ud800"}'),
    "a status of its own": lambda send: send(b"HTTP/1.1 799 What\r\nContent-Length: 2\r\n\r\n{}"),
    "a wait without end": lambda send: send(
        b"HTTP/1.1 429 Wait\r\nRetry-After: 1e999\r\nretry-after-ms: nan\r\nContent-Length: 2\r\n\r\n{}"
    ),
}  # fmt: skip


CUT_OFF = {"timeout", "unreachable"}
TOO_LONG = {"truncated", *CUT_OFF}
"""Cut off at its limit of bytes, or of time where that comes first."""
FAULTS = {
    **dict.fromkeys(
        (
            "floods the body of a refusal",
            "floods the body",
            "floods events",
            "thinks for ever",
            "opens objects",
        ),
        TOO_LONG,
    ),
    **dict.fromkeys(("is deeply nested", "has a long number"), TOO_LONG),
    "says nothing": {"timeout"},
    "a status of its own": {"bad request"},
    "a wait without end": {"rate limit"},
    "a thousand calls": {"tool loop"},
    "an unknown tool": {"tool loop"},
}
"""What the session says of a behaviour; of a reply that was read, else, that it is malformed."""
ANSWERS = list(BEHAVIOURS)[list(BEHAVIOURS).index("thinks for ever") :]
"""Behaviours that send a whole reply."""
UNREAD = {"is a gzip bomb", "a status of its own", "a wait without end"}
"""Of these, replies that are given up at their first line or headers: nobody reads or pays for the body."""


@dataclass
class Evil:
    """A server that counts what happened to it: without a request and its bytes a test shows nothing."""

    url: str
    asked: list[bytes] = field(default_factory=list)
    """The requests, whole."""
    sent: int = 0
    """Bytes, over all connections."""
    pieces: int = 0
    """What the behaviour sent at a time."""


@contextmanager
def serving(behave: Behaviour) -> Iterator[Evil]:
    """A real server; what it is asked is read first, as a client expects."""
    listening, is_over = socket.create_server(("127.0.0.1", 0)), threading.Event()
    evil, lock = Evil(f"http://127.0.0.1:{listening.getsockname()[1]}/v1"), threading.Lock()

    def answer(connection: socket.socket) -> None:
        def send(data: bytes) -> None:
            left = memoryview(data)
            with lock:  # before it is sent: the client may be done with it sooner than this thread
                evil.pieces += 1
                evil.sent += len(data)
            while left:
                if is_over.is_set():
                    raise OSError
                left = left[connection.send(left) :]

        with connection, suppress(OSError):
            connection.settimeout(20)
            request = _read_request(connection)
            with lock:
                evil.asked.append(request)
            behave(send)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield evil
    finally:
        is_over.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def _read_request(connection: socket.socket) -> bytes:
    """To its last byte: closing a connection with unread bytes would take the reply back."""
    with connection.makefile("rb") as file:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = file.readline()
            if not line:
                raise OSError
            head += line
        length = next(
            int(line.split(b":")[1])
            for line in head.splitlines()
            if line.lower().startswith(b"content-length:")
        )
        return head + file.read(length)


def expected(name: str) -> set[str]:
    is_read = name in ANSWERS and name not in UNREAD
    return FAULTS.get(name, {"malformed"} if is_read else CUT_OFF)


@contextmanager
def _model(url: str, deadline_s: float = DEADLINE_S) -> Iterator[LanguageModel]:
    endpoint = Endpoint(url, "evil", "sk-secret", timeout_s=deadline_s / 2, deadline_s=deadline_s)
    model = LanguageModel(replace(endpoint, price_per_million_input=1.0, price_per_million_output=1.0))
    try:
        yield model
    finally:
        model.close()


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_the_rules_answer_in_place_of_an_evil_endpoint(name: str) -> None:
    """The deadline is the endpoint's own: a session that is done has kept it for every question."""
    # Whoever answers at once has time on a busy machine too: being late is another fault.
    answers_at_once = {"malformed", "bad request", "rate limit", "tool loop"}
    deadline_s = 60.0 if expected(name) & answers_at_once else DEADLINE_S
    with serving(BEHAVIOURS[name]) as evil, _model(evil.url, deadline_s) as model:
        context = Context(open_seed(), reasoner=model, limits=Limits(tokens=TOKENS, cost=1.0))
        started = time.thread_time()
        outcome, events = run(small(), context)
        report = data_of(outcome)
        print(f"{name}: {time.thread_time() - started:.1f} s of CPU")  # for whoever runs this with -s
    assert [proposal["plan"] for proposal in report["proposals"]] == [
        proposal["plan"] for proposal in RULES["proposals"]
    ]
    assert report["verdict"] == RULES["verdict"]
    has_happened(name, evil, report)
    assert report["usage"]["tokens"] == sum(event.tokens for event in events if isinstance(event, Reasoned))
    assert len({incident["kind"] for incident in report["incidents"]}) == len(report["incidents"])
    assert report["usage"]["tokens"] >= 0
    assert report["usage"]["cost"] >= 0
    text = json.dumps(report, ensure_ascii=False, allow_nan=False)
    assert "\x00" not in text.encode().decode()


def has_happened(name: str, evil: Evil, report: dict[str, Any]) -> None:
    """Fails unless the endpoint was asked, behaved so, and the session says what it met."""
    kinds = {incident["kind"] for incident in report["incidents"]}
    assert any(b"Task: find_cause" in request for request in evil.asked)
    assert report["usage"]["answered"] == 0
    assert report["usage"]["fell_back"] == 4
    if name not in ("says nothing", "closes at once"):
        assert evil.sent >= len(b"HTTP/1.1 200 OK")
    if name.startswith(("trickles", "floods", "continues")):
        assert evil.pieces > 2 * len(evil.asked)
    if name not in ANSWERS or name in UNREAD:
        assert kinds - {"budget"} <= expected(name)
    else:  # read, and paid for, until the budget was spent
        assert kinds & expected(name)
        assert "budget" in kinds
        assert report["usage"]["tokens"] >= TOKENS


def test_a_redirect_takes_no_prompt_to_another_host() -> None:
    with serving(_raw(b"{}")) as other:
        for status in (301, 302, 307, 308):
            answer = (
                f"HTTP/1.1 {status} Go\r\nLocation: {other.url}/chat/completions\r\nContent-Length: 0\r\n\r\n"
            )
            with serving(lambda send, text=answer: send(text.encode())) as evil, _model(evil.url) as model:  # type: ignore[misc]
                report = data_of(run(small(), Context(open_seed(), reasoner=model))[0])
            assert report["verdict"] == RULES["verdict"]
            assert len(evil.asked) >= report["usage"]["fell_back"] == 4
            assert evil.sent >= len(answer) * len(evil.asked)
            assert f"({status})" in report["incidents"][0]["message"]
    assert other.asked == []
