"""A job's folder: everything ASAP knows of it, each file written whole or not at all.

    inputs/          scenario.json and the exported plan
    intent.json      what shall run; written before any engine hears of it, never changed
    out/             the job's results
    log.txt          its output
    cancelled        somebody wanted its end: it must not start any more
    final.json       how it ended, kept for when the engine forgets

Each launcher adds its own record of the engine's name for the job.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.launch.files import CANCELLED, FINAL, INPUTS, INTENT, LOG, OUT, write_whole
from tools.launch.job import check_key
from tools.launch.status import JobStatus

_LOCK = "submit.lock"


@dataclass(frozen=True)
class Intent:
    """What shall run, with nothing left to fill in but what only the engine knows."""

    key: str
    launcher: str
    template: str
    digest: str
    """Of the job as the caller gave it: the same key with another digest is a mistake."""
    mark: str
    """Value of ASAP_JOB in every process of the job."""
    command: list[str]
    environment: dict[str, str]
    workdir: str
    nnodes: int
    nproc: int
    wall_s: int


@dataclass(frozen=True)
class JobFolder:
    path: Path

    @classmethod
    def of(cls, root: Path, key: str) -> "JobFolder":
        check_key(key)
        return cls(root.absolute() / key)

    @property
    def inputs(self) -> Path:
        return self.path / INPUTS

    @property
    def out(self) -> Path:
        return self.path / OUT

    @property
    def log(self) -> Path:
        return self.path / LOG

    def make(self, *, for_others: bool = False) -> None:
        """With `for_others` any user may read the inputs and write results, as a container's user must."""
        for folder, mode in ((self.path, 0o755), (self.inputs, 0o755), (self.out, 0o777)):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if for_others:
                folder.chmod(mode)

    def add_input(self, name: str, text: str, *, for_others: bool = False) -> None:
        write_whole(self.inputs / name, text)
        if for_others:
            (self.inputs / name).chmod(0o644)

    def find_intent(self) -> Intent | None:
        content = self.read(INTENT)
        return Intent(**content) if content else None

    def record_intent(self, intent: Intent) -> Intent:
        """The intent of whoever came first."""
        self.write(INTENT, asdict(intent), only_first=True)
        found = self.find_intent()
        assert found is not None
        return found

    def mark_cancelled(self) -> None:
        self.write(CANCELLED, {})

    @property
    def is_cancelled(self) -> bool:
        return (self.path / CANCELLED).exists()

    def find_final(self) -> JobStatus | None:
        content = self.read(FINAL)
        return JobStatus.from_json(content) if content else None

    def keep_final(self, status: JobStatus) -> JobStatus:
        """The first end counts: a job ends once."""
        if not status.has_ended:
            return status
        self.write(FINAL, status.to_json(), only_first=True)
        return self.find_final() or status

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return content

    def write(self, name: str, content: object, *, only_first: bool = False) -> None:
        write_whole(self.path / name, json.dumps(content, indent=1) + "\n", only_first=only_first)

    @contextmanager
    def submission(self) -> Iterator[int]:
        """One submitter at a time; a child that is given the descriptor holds the lock too."""
        descriptor = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)
