"""Connections that make the server wait keep nobody out; a database that comes later is waited for."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import httpx
import psycopg
import pytest
import uvicorn
from anyio.to_thread import run_sync
from starlette.types import ASGIApp, Receive, Scope, Send

from service.db.engine import open_database
from service.http.connections import bounded_protocol
from service.http.limits import BodyLimits
from service.http.problems import ApiError
from service.jobs.engine import prepare
from tests.integration.service.api_process import api_process, asap
from tests.integration.service.at_work import settings_for, wait_for
from tests.servers import running_postgres

LIMIT = 20
HEADERS_S = 0.5
PATIENCE_S = 0.5
LONG = b"x" * 2**23
"""More than the kernel takes for a client that does not read."""
GET = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
WAITING = {"idle": GET % b"", "sending": POST, "unread": 3 * GET % (b"long", b"long", b"long")}
worked, go_on = threading.Event(), threading.Event()


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    while scope["method"] == "POST" and (await receive()).get("more_body"):
        pass
    if scope["path"] == "/busy":
        worked.set()
        await run_sync(go_on.wait)
    body = LONG if scope["path"] == "/long" else b"ok"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(app: ASGIApp, protocol: type[asyncio.Protocol]) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait_for(lambda: server.started)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


@pytest.fixture(params=[HEADERS_S])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    with serving(app, bounded_protocol(2 * LIMIT, LIMIT, 10**6, headers_s=request.param)) as port:
        yield port


def opened(port: int, address: str, first: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
    connection.sendall(first)
    connection.settimeout(20)
    return connection


def is_answered(port: int, address: str) -> bool:
    try:
        with opened(port, address, GET % b"") as connection:
            return b"200 OK" in connection.recv(1000)
    except ConnectionError:
        return False


@pytest.mark.parametrize("port", [600.0], indirect=True)
@pytest.mark.parametrize("kind", WAITING)
def test_waiting_connections_of_an_address_make_room(port: int, kind: str) -> None:
    """700 of them, without a key, stopped every answer. Nothing but the limits cuts them off here."""
    with ExitStack() as stack:
        for place in range(1, 5):  # one address has too many, all together have
            for _ in range(3 * LIMIT if place == 1 else LIMIT):
                stack.enter_context(opened(port, f"127.0.0.{place}", WAITING[kind]))
        assert all(is_answered(port, f"127.0.0.{place}") for place in (1, 4, 5) for _ in range(10))


@pytest.mark.parametrize("port", [600.0], indirect=True)
def test_a_request_that_is_worked_on_is_never_cut_off(port: int) -> None:
    with ExitStack() as stack:
        busy = stack.enter_context(opened(port, "127.0.0.1", GET % b"busy"))
        assert worked.wait(20)
        for _ in range(3 * LIMIT):
            stack.enter_context(opened(port, "127.0.0.1", GET % b""))
        go_on.set()
        assert b"200 OK" in busy.recv(1000)


def test_a_connection_that_sends_whole_requests_stays(port: int) -> None:
    """Longer than the headers of one may take; it was cut off amid its answer."""
    with opened(port, "127.0.0.1", b"") as connection:
        for _ in range(4):
            connection.sendall(GET % b"")
            assert b"200 OK" in connection.recv(1000)
            time.sleep(HEADERS_S / 2)


def test_an_address_that_opens_connections_too_fast_is_refused_and_others_are_not() -> None:
    with serving(app, bounded_protocol(LIMIT, LIMIT, 1, proxies=["127.0.0.3"])) as port:
        assert [is_answered(port, "127.0.0.1") for _ in range(3)] == [True, False, False]
        assert is_answered(port, "127.0.0.2")
        assert all(is_answered(port, "127.0.0.3") for _ in range(3)), "a proxy speaks for many"


def test_more_pipelined_requests_than_anybody_sends_are_refused(port: int) -> None:
    with opened(port, "127.0.0.1", GET % b"" * 100) as connection:
        heard = b""
        while part := connection.recv(10_000):
            heard += part
    assert b"400 Bad Request" in heard
    assert heard.count(b"200 OK") < 100


def test_a_body_that_trickles_is_refused_though_no_pause_is_long() -> None:
    errors: list[ApiError] = []

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except ApiError as error:
            errors.append(error)
            raise

    limits = BodyLimits(reads, 10**6, 10**6, PATIENCE_S)
    with serving(limits, bounded_protocol(LIMIT, LIMIT, 10**6)) as port, opened(port, "", POST) as slow:
        pieces = 0

        def is_refused() -> bool:
            nonlocal pieces
            with suppress(ConnectionError):
                slow.sendall(b"a")
                pieces += 1
            return bool(errors)

        wait_for(is_refused, 20)
    assert pieces > 2, "nothing trickled"
    assert errors[0].kind == "timeout"


def test_without_a_key_the_answer_comes_before_the_body(tmp_path: Path) -> None:
    asap(tmp_path, "keys", "add", "somebody")
    with api_process(tmp_path, "--role", "api") as api:
        head = POST.replace(b"POST /", b"POST /v1/predict/batch", 1)
        with opened(api.port, "127.0.0.1", head) as connection:
            assert b"401 Unauthorized" in connection.recv(1000)


def test_who_hangs_up_amid_a_body_is_a_line_of_the_log_and_no_fault(tmp_path: Path) -> None:
    """Each was an error with a traceback of 6 kB, as many as a tenant liked."""
    with api_process(tmp_path) as server:
        head = POST.replace(b"/", b"/v1/predict", 1).replace(b"Host: x", b"Host: localhost")
        opened(server.port, "127.0.0.1", head + b"{").close()
        wait_for(lambda: any(line.get("path") == "/v1/predict" for line in server.log_lines()))
        (line,) = (line for line in server.log_lines() if line.get("path") == "/v1/predict")
        assert line["status"] in (400, 499), "FastAPI answers 400 if it is who reads that nothing follows"
        assert [line for line in server.log_lines() if line["level"] == "error"] == []


@pytest.mark.parametrize("port", [600.0], indirect=True)
def test_half_open_connections_make_room_for_whole_requests(port: int) -> None:
    """Their headers are waited for longer than this test takes: nothing but the limit cuts them off."""
    with ExitStack() as stack, httpx.Client() as client:
        halves = []
        for _ in range(10 * LIMIT):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            half.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
            half.setblocking(False)
            halves.append(half)
        for _ in range(50):
            assert client.get(f"http://127.0.0.1:{port}/").text == "ok"
        assert sum(map(is_open, halves)) == LIMIT - 1, "the whole request's own is the last of them"


def is_open(half: socket.socket) -> bool:
    try:
        return half.recv(1000) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize(
    ("first", "answers"),
    [
        (b"", 0),
        (b"GET / HTTP/1.1\r\n", 0),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /", 1),
    ],
)
def test_headers_that_do_not_end_are_cut_off(port: int, first: bytes, answers: int) -> None:
    """Also those of a second request on the same connection."""
    begun, heard, pieces = time.monotonic(), b"", 0
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.settimeout(0.05)
        slow.sendall(first)

        def is_cut_off() -> bool:
            nonlocal heard, pieces
            try:
                if first:
                    slow.sendall(b"a")
                    pieces += 1
                part = slow.recv(1000)
                heard += part
                return part == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_for(is_cut_off, 20)
    assert time.monotonic() - begun >= HEADERS_S
    assert pieces > 1 or not first, "nothing trickled"
    assert heard.count(b"HTTP/1.1") == heard.count(b"200 OK") == answers, "it was refused, not cut off"


def test_a_database_that_is_down_at_the_start_is_waited_for(tmp_path: Path) -> None:
    """Processes exited, and a deployment that starts everything at once did not come up."""
    with running_postgres() as server:
        settings = settings_for(tmp_path, server.get_uri())
        server.stop()
        with closing(open_database(settings.database)) as database:
            starting = threading.Thread(target=prepare, args=(settings, database))
            starting.start()
            time.sleep(1)
            assert starting.is_alive()
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(server.get_uri())
            server.start()
            starting.join()
            assert database.is_current()
