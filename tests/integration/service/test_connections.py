"""Half-open connections keep nobody out, and a database that comes later is waited for."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from service.api.server import bounded_protocol
from service.db.engine import open_database
from service.worker.jobs import prepare
from tests.integration.service.at_work import settings_for, wait_for
from tests.servers import running_postgres

LIMIT = 20


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def port() -> Iterator[int]:
    listening = socket.create_server(("127.0.0.1", 0))
    protocol = bounded_protocol(LIMIT, headers_s=0.5)
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    wait_for(lambda: server.started)
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


def test_half_open_connections_make_room_for_whole_requests(port: int) -> None:
    with ExitStack() as stack, httpx.Client() as client:
        for _ in range(10 * LIMIT):
            half = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            half.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        for _ in range(50):
            assert client.get(f"http://127.0.0.1:{port}/").text == "ok"


@pytest.mark.parametrize("first", [b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /"])
def test_headers_that_do_not_end_are_cut_off(port: int, first: bytes) -> None:
    """Also those of a second request on the same connection."""
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.settimeout(0.05)
        slow.sendall(first)

        def is_cut_off() -> bool:
            try:
                slow.sendall(b"a")
                return slow.recv(1000) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_for(is_cut_off, 20)


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
            server.start()
            starting.join()
            assert database.is_current()
