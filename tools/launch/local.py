"""Jobs as processes of this machine, each under a supervisor of its own that outlives the service.

Exactly once: the supervisor locks the job's folder and records its identity before it starts the job; a
second submit of the key finds the lock or the record and exits.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.launch.files import LogChunk, copy_results, follow_file, tail
from tools.launch.folder import JobFolder, Place, prepare
from tools.launch.launcher import Job
from tools.launch.status import Cause, Handle, JobStatus, LaunchError, State, wait_for_end
from tools.launch.supervisor import LOCK, PROCESS, ProcessIdentity, kill_marked, send_signal
from tools.launch.template import Template

NAME = "local"
_POLL_S = 0.1
_START_S = 60.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class LocalLauncher:
    """`root` holds one folder per job; `environment` is what templates may let their jobs inherit."""

    name = NAME

    def __init__(
        self,
        root: Path,
        templates: Mapping[str, Template],
        environment: Mapping[str, str],
        grace_s: float = 10.0,
    ) -> None:
        # torchrun with port 0 takes a free one.
        self._place = Place(NAME, root, rendezvous="localhost:0", inherited=environment)
        self._templates = templates
        self._grace_s = grace_s

    def submit(self, key: str, job: Job) -> Handle:
        folder = prepare(self._place, self._templates, key, job).folder
        if not self._has_begun(folder) and not folder.is_cancelled:
            self._start_supervisor(folder)
        return self._get_handle(folder, key)

    def find(self, key: str) -> Handle | None:
        folder = JobFolder.of(self._place.root, key)
        return self._get_handle(folder, key) if self._has_begun(folder) else None

    def status(self, handle: Handle) -> JobStatus:
        """Also ends what is left of a job whose supervisor was killed: nothing else enforces its limit."""
        folder = self._folder(handle)
        supervisor = _find_supervisor(folder)
        final = folder.find_final()
        if final:
            return final
        if supervisor is None:
            return _unstarted(folder)
        if supervisor.is_alive():
            return JobStatus(State.RUNNING, source="supervisor", nodes=(os.uname().nodename,))
        return self._end_unsupervised(folder)

    def wait(self, handle: Handle, timeout_s: float) -> JobStatus:
        return wait_for_end(lambda: self.status(handle), lambda left_s: time.sleep(_POLL_S), timeout_s)

    def logs(self, handle: Handle, offset: int = 0, *, follow: bool = True) -> Iterator[LogChunk]:
        log = self._folder(handle).log
        return follow_file(log, offset, lambda: self.status(handle).has_ended, follow=follow)

    def artefacts(self, handle: Handle, to: Path) -> list[Path]:
        return copy_results(self._folder(handle).out, to)

    def cancel(self, handle: Handle, timeout_s: float = 60.0) -> JobStatus:
        folder = self._folder(handle)
        folder.mark_cancelled()

        def ask_to_end(left_s: float) -> None:
            supervisor = _find_supervisor(folder)
            if supervisor:
                send_signal(supervisor, signal.SIGTERM)
            time.sleep(_POLL_S)

        return wait_for_end(lambda: self.status(handle), ask_to_end, timeout_s)

    def _folder(self, handle: Handle) -> JobFolder:
        return JobFolder.of(self._place.root, handle.key)

    def _has_begun(self, folder: JobFolder) -> bool:
        return _find_supervisor(folder) is not None or folder.find_final() is not None

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

    def _get_handle(self, folder: JobFolder, key: str) -> Handle:
        supervisor = _find_supervisor(folder)
        if supervisor:
            return Handle(NAME, key, f"{supervisor.pid}:{supervisor.start_ticks}:{supervisor.boot_id}")
        if folder.is_cancelled:
            return Handle(NAME, key, "never started")
        raise LaunchError(f"the supervisor of {key} left no record; see supervisor.txt in {folder.path}")

    def _end_unsupervised(self, folder: JobFolder) -> JobStatus:
        final = folder.find_final()  # written by the supervisor's last act, after we looked
        if final:
            return final
        intent = folder.find_intent()
        survivors = kill_marked(intent.mark) if intent else []
        detail = "its supervisor was killed or the machine restarted: how it ended is not known"
        if survivors:
            detail += f"; processes {survivors} could not be killed"
        cause = Cause.CANCELLED if folder.is_cancelled else Cause.LOST
        state = State.CANCELLED if folder.is_cancelled else State.LOST
        return folder.keep_final(JobStatus(state, cause, detail=detail, source="folder"))


def _find_supervisor(folder: JobFolder) -> ProcessIdentity | None:
    text = folder.read(PROCESS)
    return ProcessIdentity(**json.loads(text)) if text else None


def _unstarted(folder: JobFolder) -> JobStatus:
    if folder.is_cancelled and _is_unclaimed(folder):
        status = JobStatus(State.CANCELLED, Cause.CANCELLED, detail="never started", source="folder")
        return folder.keep_final(status)
    return JobStatus(State.QUEUED, source="folder")


def _is_unclaimed(folder: JobFolder) -> bool:
    """No supervisor holds the job; one that comes later finds the mark of the cancellation."""
    descriptor = os.open(folder.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return _find_supervisor(folder) is None
    finally:
        os.close(descriptor)
