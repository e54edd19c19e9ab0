"""Starting where things are missing: the database goes away at any moment, the disk is full."""

import re
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from tests.integration.service.api_process import ApiProcess, api_process, asap
from tests.integration.service.at_work import wait_for

MOMENTS = 6
AWAY_S = 0.7
PIECE_BYTES = 65536


class Gate:
    """Between a server and its PostgreSQL: counts what the server says, and once cuts everybody off."""

    def __init__(self, database_url: str, cut_at: float = float("inf")) -> None:
        found = re.search(r"/(\w+)\?host=(.*)", database_url)
        assert found, database_url
        self._behind, self._cut_at = f"{found[2]}/.s.PGSQL.5432", cut_at
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://postgres@127.0.0.1:{self._listening.getsockname()[1]}/{found[1]}"
        self.messages, self.cuts, self.refused, self._back_at = 0, 0, 0, 0.0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listening.accept()[0]
                if time.monotonic() < self._back_at:
                    self.refused += 1
                    client.close()
                else:
                    threading.Thread(target=self._pass_on, args=(client, self.cuts), daemon=True).start()

    def _pass_on(self, client: socket.socket, cuts: int) -> None:
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._behind)
            while self.cuts == cuts:
                for ready in select.select([client, server], [], [], 0.01)[0]:
                    data = ready.recv(PIECE_BYTES)
                    if not data:
                        return
                    if ready is client:
                        self.messages += 1
                        if self.messages >= self._cut_at and not self.cuts:
                            self._back_at, self.cuts = time.monotonic() + AWAY_S, 1
                            return
                    (server if ready is client else client).sendall(data)


@contextmanager
def starting(folder: Path, gate: Gate) -> Iterator[ApiProcess]:
    folder.mkdir()
    with closing(gate), api_process(folder, database_url=gate.url) as server:
        yield server


def has_worker(server: ApiProcess) -> bool:
    """Of its own: a dead one's lease may still hold."""
    return any(re.fullmatch(r"worker \S+ ready", str(line["message"])) for line in server.log_lines())


@pytest.mark.slow
def test_a_start_survives_a_database_that_goes_away_at_any_moment_of_it(
    tmp_path: Path, postgres_url: str
) -> None:
    """The moments are counted in messages to the database, over those of a start that nothing disturbs."""
    whole = Gate(postgres_url)
    with starting(tmp_path / "whole", whole) as server:
        wait_for(lambda: has_worker(server))
        messages = whole.messages
    assert messages > MOMENTS
    for moment in range(MOMENTS):
        gate = Gate(postgres_url, cut_at=1 + messages * moment // MOMENTS)
        with starting(tmp_path / str(moment), gate) as server:
            wait_for(lambda: gate.cuts == 1 and has_worker(server))  # noqa: B023 - called before it changes
            assert server.process
            assert server.process.poll() is None
            assert server.stop() == 0


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a small disk")
    with suppress(OSError), (folder / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(4096))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_refused_in_one_line(full_disk: Path, tmp_path: Path) -> None:
    refused = asap(tmp_path, "serve", "--port", "0", data_dir=full_disk)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert f"the disk of {full_disk} is full: 0 MiB are free" in refused.stderr


def test_data_is_for_its_user_alone_and_what_an_older_version_left_open_is_closed(tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir()
    (data / "asap.db").touch(0o644)
    with api_process(tmp_path) as server:
        wait_for(lambda: has_worker(server))
        files = [path for path in data.iterdir() if path.is_file()]
        assert {"asap.db", "checkpoints.db", "checkpoint.key"} <= {path.name for path in files}
        readable = [path.name for path in files if path.stat().st_mode & 0o077 and path.suffix != ".lock"]
        assert readable == []
