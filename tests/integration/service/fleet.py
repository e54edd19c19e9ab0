"""Real worker programs that are killed without warning and started again, as a supervisor would."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]


class Fleet:
    """So many processes of `python -m service.worker`, each with a data folder of its own."""

    def __init__(
        self,
        folder: Path,
        count: int,
        database_url: str | None = None,
        lease_s: float = 2.0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._folder, self._url, self._lease_s = folder, database_url, lease_s
        self._settings = dict(settings or {})
        self._number = 0
        self.log = folder / "workers.log"
        self.processes = [self._start(number) for number in range(count)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        folder = self._folder / f"worker{number}"
        environment = {
            **os.environ,
            "ASAP_DATA_DIR": str(folder),
            "ASAP_EMBEDDING": "none",
            "ASAP_LEASE_S": str(self._lease_s),
            "ASAP_LOG_LEVEL": "warning",
            **self._settings,
        }
        if self._url:
            environment["ASAP_DATABASE_URL"] = self._url
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "service.worker"]
            return subprocess.Popen(command, cwd=REPO, env=environment, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        """Without a chance to write anything, and a new one in its place."""
        self.processes[number].kill()
        self.processes[number].wait()
        self.processes[number] = self._start(number)

    def kill_one(self, chance: random.Random) -> None:
        self.kill(chance.randrange(len(self.processes)))

    def living(self) -> int:
        return sum(process.poll() is None for process in self.processes)

    def stop(self, longest_s: float = 60.0) -> list[int]:
        """Politely; the exit statuses."""
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + longest_s
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in self.processes]

    def end(self) -> None:
        """Nothing is left, whatever the test came to."""
        for process in self.processes:
            process.kill()
            process.wait()
