"""A server as a user starts it: the command `asap serve` in a process of its own, on a free port."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
STOP_S = 60


@dataclass
class ApiProcess:
    address: str
    process: subprocess.Popen[str]
    log: Path

    def kill(self) -> None:
        """Without a chance to say goodbye."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """As a system does it; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def log_lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]


def environment(folder: Path, **settings: object) -> dict[str, str]:
    """Nothing of the tester's own settings."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ASAP_")}
    named = {f"ASAP_{name.upper()}": str(value) for name, value in settings.items()}
    return {**plain, "ASAP_DATA_DIR": str(folder / "data"), "ASAP_EMBEDDING": "none", **named}


def asap(folder: Path, *words: str, **settings: object) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    command = [sys.executable, "-m", "service.cli.main", *words]
    return subprocess.run(
        command, cwd=REPO, env=environment(folder, **settings), capture_output=True, text=True, check=False
    )


@contextmanager
def api_process(folder: Path, *words: str, port: int = 0, **settings: object) -> Iterator[ApiProcess]:
    """Listening when it is yielded; stopped in the end, whatever happens."""
    log = folder / f"serve-{len(list(folder.glob('serve-*.log')))}.log"
    command = [sys.executable, "-m", "service.cli.main", "serve", "--port", str(port), "--json", *words]
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=REPO,
            env=environment(folder, **settings),
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line, f"the server did not start: {log.read_text()}"
            yield ApiProcess(json.loads(line)["address"], process, log)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            process.stdout.close()
