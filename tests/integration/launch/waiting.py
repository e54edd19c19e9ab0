"""A job under test on one launcher, waiting for a fact, and what a job must not leave behind."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tools.launch.failures import Failure, classify, gather_evidence
from tools.launch.folder import JobFolder
from tools.launch.launcher import Job, Launcher
from tools.launch.status import Handle, JobState, JobStatus
from tools.launch.supervisor import find_marked

WAIT_S = 120.0
"""As long as a busy machine may take."""


def until(fact: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not fact():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def processes_of(root: Path) -> list[int]:
    """Of all jobs in this folder: none may be left when a test is over."""
    intents = [json.loads(path.read_text()) for path in root.glob("*/intent.json")]
    return [process.pid for intent in intents for process in find_marked(intent["mark"])]


@dataclass
class Run:
    launcher: Launcher
    root: Path
    key: str = "k1"
    job: Job = field(default_factory=lambda: Job("test", {"model": {}}))

    @property
    def folder(self) -> JobFolder:
        return JobFolder.of(self.root, self.key)

    @property
    def handle(self) -> Handle:
        handle = self.launcher.find(self.key)
        assert handle is not None
        return handle

    def submit(self) -> Handle:
        return self.launcher.submit(self.key, self.job)

    def start(self) -> Handle:
        """Submits, and waits until the engine has started it."""
        handle = self.submit()
        until(lambda: self.launcher.status(handle).state is JobState.RUNNING)
        return handle

    def finish(self, timeout_s: float = WAIT_S) -> JobStatus:
        return self.launcher.wait(self.submit(), timeout_s)

    def output(self) -> str:
        return "\n".join(self.launcher.log_tail(self.handle, 100))

    def failure(self) -> Failure | None:
        """Why it failed, if it did."""
        return classify(gather_evidence(self.launcher, self.handle, self.root.parent / "gathered"))
