"""A server as a user starts it: the command `asap serve` in a process of its own, on a free port."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
ASAP = [str(Path(sys.executable).with_name("asap"))]
"""The console script, as a user calls it."""
STOP_S = 60


@dataclass
class ApiProcess:
    """Killed without warning or stopped, and begun again on the same port."""

    folder: Path
    words: Sequence[str]
    environment: dict[str, str]
    port: int = 0
    address: str = ""
    process: subprocess.Popen[str] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.folder / "serve.log"

    def start(self) -> "ApiProcess":
        """Listening when this returns."""
        command = [*ASAP, *self.words, "--port", str(self.port), "--json"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command, cwd=REPO, env=self.environment, stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the server did not start: {self.log.read_text()[-2000:]}"
        self.address = json.loads(line)["address"]
        self.port = int(self.address.rpartition(":")[2])
        return self

    def kill(self) -> int | None:
        """Without a chance to say goodbye; the exit status, which tells whether it was alive until then."""
        if not self.process:
            return None
        self.process.kill()
        return self._close()

    def signal(self, number: int) -> None:
        assert self.process
        if self.process.poll() is None:
            self.process.send_signal(number)

    def stop(self) -> int:
        """As a system does it; the exit status."""
        self.signal(signal.SIGTERM)
        return self._close()

    def _close(self) -> int:
        assert self.process
        assert self.process.stdout
        status = self.process.wait(STOP_S)
        self.process.stdout.close()
        return status

    def log_lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def environment(folder: Path, **settings: object) -> dict[str, str]:
    """Nothing of the tester's own settings. Processes that compute are there where a test asks for them only:
    each of them imports as much as the server itself."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ASAP_")}
    named = {f"ASAP_{name.upper()}": str(value) for name, value in settings.items()}
    usual = {"ASAP_DATA_DIR": str(folder / "data"), "ASAP_EMBEDDING": "none", "ASAP_COMPUTE_PROCESSES": "0"}
    return {**plain, **usual, **named}


def asap(
    folder: Path, *words: str, standard_input: str = "", **settings: object
) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    env, command = environment(folder, **settings), [*ASAP, *words]
    return subprocess.run(
        command, cwd=REPO, env=env, input=standard_input, capture_output=True, text=True, check=False
    )


@contextmanager
def running(process: ApiProcess) -> Iterator[ApiProcess]:
    """Listening when it is yielded; ended in the end, whatever happens."""
    try:
        yield process.start()
    finally:
        process.kill()


@contextmanager
def api_process(folder: Path, *words: str, port: int = 0, **settings: object) -> Iterator[ApiProcess]:
    with running(ApiProcess(folder, ["serve", *words], environment(folder, **settings), port)) as process:
        yield process
