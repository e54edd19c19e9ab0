"""Half-open connections keep nobody out, and a database that comes later is waited for."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import psycopg
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from service.api.server import bounded_protocol
from service.db.engine import open_database
from service.worker.jobs import prepare
from tests.integration.service.at_work import settings_for, wait_for
from tests.servers import running_postgres

LIMIT = 20
HEADERS_S = 0.5


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture(params=[HEADERS_S])
def port(request: pytest.FixtureRequest) -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    protocol = bounded_protocol(LIMIT, headers_s=request.param)
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait_for(lambda: server.started)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


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
