"""Real worker programs that are killed without warning and started again, as a supervisor would."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import sqlalchemy as sa

from service.db.engine import Database
from service.jobs.model import RUNNING
from service.jobs.workers import EMBEDDED
from service.sessions.model import sessions

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
        self._started_at: dict[int, float] = {}
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
        self._started_at[number] = time.time()
        if self._url:
            environment["ASAP_DATABASE_URL"] = self._url
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "service.worker"]
            return subprocess.Popen(command, cwd=REPO, env=environment, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        """Without a chance to write anything, and a new one in its place. It must have been alive."""
        self.processes[number].kill()
        status = self.processes[number].wait()
        assert status == -signal.SIGKILL, f"it had ended by itself, {status}: {self.log.read_text()[-2000:]}"
        self.processes[number] = self._start(number)

    def revive(self) -> int:
        """Those that ended by themselves, as on a full disk, are begun again: a supervisor does no less."""
        ended = [number for number, process in enumerate(self.processes) if process.poll() is not None]
        for number in ended:
            self.processes[number] = self._start(number)
        return len(ended)

    def at_work(self, database: Database) -> list[int]:
        """Those that run a session: on PostgreSQL their names hold the process, on SQLite there is one.

        A session that a killed worker left behind is nobody's work until it is claimed again.
        """
        with database.read() as conn:
            claimed = sa.select(sessions.c.worker, sessions.c.updated_at).where(sessions.c.state == RUNNING)
            claims = conn.execute(claimed).all()
        return [
            number
            for number, process in enumerate(self.processes)
            if any(
                f"-{process.pid}-" in name or (name == EMBEDDED and at > self._started_at[number])
                for name, at in claims
            )
        ]

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
