"""Jobs as processes of this machine, each under a supervisor of its own that outlives the service.

Exactly once: the supervisor locks the job's folder and records its identity before it starts the job; a
second submit of the key finds the lock or the record and exits.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tools.launch.folder import JobFolder, tail, try_lock
from tools.launch.launcher import Job, Launcher
from tools.launch.status import Handle, JobState, JobStatus, LaunchError
from tools.launch.supervisor import LOCK, PROCESS, ProcessIdentity, kill_marked, send_signal
from tools.launch.template import Template

_POLL_S = 0.1
_START_S = 60.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class LocalLauncher(Launcher):
    """`environment` is what templates may let their jobs inherit."""

    name = "local"
    rendezvous = "localhost:0"  # torchrun with port 0 takes a free one

    def __init__(
        self,
        root: Path,
        templates: Mapping[str, Template],
        environment: Mapping[str, str],
        grace_s: float = 10.0,
    ) -> None:
        super().__init__(root, templates, environment, _POLL_S)
        self._grace_s = grace_s

    def submit(self, key: str, job: Job) -> Handle:
        folder = self._prepare(key, job).folder
        handle = self.find(key)
        if handle is None and not folder.is_cancelled:
            self._start_supervisor(folder)
            handle = self.find(key)
        if handle is None and not folder.is_cancelled:
            raise LaunchError(f"the supervisor of {key} left no record; see supervisor.txt in {folder.path}")
        return handle or Handle(self.name, key, "never started")

    def find(self, key: str) -> Handle | None:
        folder = self._folder(key)
        supervisor = _find_supervisor(folder)
        if supervisor:
            reference = f"{supervisor.pid}:{supervisor.start_ticks}:{supervisor.boot_id}"
            return Handle(self.name, key, reference)
        return Handle(self.name, key, "never started") if folder.find_final() else None

    def _start_supervisor(self, folder: JobFolder) -> None:
        command = [sys.executable, "-m", "tools.launch.supervisor", str(folder.path), str(self._grace_s)]
        output = folder.path / "supervisor.txt"
        try:
            with output.open("ab") as file:
                result = subprocess.run(
                    command,
                    cwd=_PACKAGE_ROOT,
                    env={},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                    timeout=_START_S,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            raise LaunchError(f"the job's supervisor did not start within {_START_S:g} s") from None
        if result.returncode:
            raise LaunchError(f"the job's supervisor did not start: {' '.join(tail(output, 3))}")

    def _query(self, folder: JobFolder, handle: Handle) -> JobStatus:
        """Also ends what is left of a job whose supervisor was killed: nothing else enforces its limit."""
        supervisor = _find_supervisor(folder)
        if supervisor is None:
            is_over = folder.is_cancelled and _is_unclaimed(folder)
            queued = JobStatus(JobState.QUEUED, source="folder")
            return JobStatus.cancelled("never started") if is_over else queued
        if supervisor.is_alive():
            return JobStatus(JobState.RUNNING, source="supervisor", nodes=(os.uname().nodename,))
        if final := folder.find_final():  # written by the supervisor's last act, after we looked
            return final
        intent = folder.find_intent()
        survivors = kill_marked(intent.mark) if intent else []
        detail = "its supervisor was killed or the machine restarted: how it ended is not known"
        if survivors:
            detail += f"; processes {survivors} could not be killed"
        return JobStatus.cancelled(detail) if folder.is_cancelled else JobStatus.lost(detail)

    def _end(self, handle: Handle) -> None:
        if supervisor := _find_supervisor(self._folder(handle.key)):
            send_signal(supervisor, signal.SIGTERM)

    def _pause(self, handle: Handle, left_s: float) -> None:
        """The supervisor of a cancelled job is asked again: it may have been about to start."""
        if self._folder(handle.key).is_cancelled:
            self._end(handle)
        super()._pause(handle, left_s)


def _find_supervisor(folder: JobFolder) -> ProcessIdentity | None:
    text = folder.read(PROCESS)
    return ProcessIdentity(**json.loads(text)) if text else None


def _is_unclaimed(folder: JobFolder) -> bool:
    """No supervisor holds the job; one that comes later finds the mark of the cancellation."""
    descriptor = folder.open_lock(LOCK)
    try:
        return try_lock(descriptor) and _find_supervisor(folder) is None
    finally:
        os.close(descriptor)
