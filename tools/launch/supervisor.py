"""The process beside a local job: starts it once, ends it at its limit or on demand, records how it ended.

python -m tools.launch.supervisor FOLDER GRACE_S

It outlives the process that started it. A lock on the folder lets one supervisor run; files of an earlier one
keep the next from running the job again. SIGTERM ends the job. A pid alone may be reused and survives no
reboot, so a process is known by its start and its boot, and the processes of a job by a mark in their
environment. Standard library only.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tools.launch.folder import JobFolder, try_lock
from tools.launch.status import MARK, FailureCause, Intent, JobState, JobStatus

LOCK, PROCESS = "supervisor.lock", "process.json"
_PROC = Path("/proc")
_PATIENCE_S = 10.0
_POLL_S = 0.1


@dataclass(frozen=True)
class ProcessIdentity:
    """A pid, when the kernel started it (clock ticks since boot), and which boot that was."""

    pid: int
    start_ticks: int
    boot_id: str

    def is_alive(self) -> bool:
        """False for a zombie too: it runs nothing any more."""
        return self.boot_id == read_boot_id() and _find_start(self.pid) == self.start_ticks


def identify(pid: int) -> ProcessIdentity | None:
    """None if there is no such process."""
    start = _find_start(pid)
    return None if start is None else ProcessIdentity(pid, start, read_boot_id())


def read_boot_id() -> str:
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def _find_start(pid: int) -> int | None:
    try:
        content = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command's name stands in parentheses and may hold any character; proc(5) counts fields from 1.
    fields = content.rpartition(")")[2].split()
    state, start_ticks = fields[0], int(fields[19])
    return None if state in "ZX" else start_ticks


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """To this very process; False if it is gone. A pidfd cannot hit a later owner of the pid."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not process.is_alive():
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def find_marked(value: str) -> Iterator[ProcessIdentity]:
    """Live processes with this mark, except the caller."""
    wanted = f"{MARK}={value}".encode()
    for entry in _PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        # Gone in the meantime, or of another user.
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                process = identify(int(entry.name))
                if process:
                    yield process


def kill_marked(value: str) -> list[int]:
    """Kills until none is left; gives the pids that would not die (stuck in the kernel) in time."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while survivors := list(find_marked(value)):
        for process in survivors:
            send_signal(process, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            return [process.pid for process in survivors]
        time.sleep(0.02)
    return []


def main(argv: list[str]) -> int:
    """Returns when the supervisor proper, a child of this process, has taken the job or left it alone."""
    folder, grace_s = JobFolder(Path(argv[0])), float(argv[1])
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        os.read(read_end, 1)
        return 0
    os.setsid()
    os.close(read_end)
    try:
        if _claim(folder):
            end_requested, own, intent = _listen(), identify(os.getpid()), folder.find_intent()
            assert own
            assert intent
            folder.write(PROCESS, asdict(own), only_first=True)
            os.close(write_end)
            folder.keep_final(_run(folder, intent, grace_s, end_requested))
    except BaseException:  # noqa: BLE001 - nothing above this process could report it
        traceback.print_exc()
    finally:
        os._exit(0)


def _claim(folder: JobFolder) -> bool:
    """Whether the job is ours; if another supervisor holds it, returns once that one is recorded."""
    lock = folder.open_lock(LOCK)
    while folder.read(PROCESS) is None:
        if try_lock(lock):
            return not (folder.read(PROCESS) or folder.find_final() or folder.is_cancelled)
        time.sleep(_POLL_S)
    return False


def _listen() -> Callable[[], bool]:
    """Whether SIGTERM has asked for the end; no other signal may interrupt a supervisor."""
    received: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return lambda: bool(received)


def _run(folder: JobFolder, intent: Intent, grace_s: float, end_requested: Callable[[], bool]) -> JobStatus:
    started_s, oom_kills = time.time(), read_oom_kills()
    try:
        child = _start(folder, intent)
    except (OSError, ValueError) as error:
        detail = f"cannot start {intent.command[0]!r}: {error}"
        return JobStatus(JobState.FAILED, FailureCause.START_FAILURE, detail=detail, source="supervisor")
    deadline_s = time.monotonic() + intent.wall_s
    ended: tuple[JobState, FailureCause] | None = None
    while child.poll() is None and not ended:
        if end_requested():
            ended = (JobState.CANCELLED, FailureCause.CANCELLED)
        elif time.monotonic() >= deadline_s:
            ended = (JobState.FAILED, FailureCause.WALL_LIMIT)
        else:
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=_POLL_S)
    if ended:
        # torchrun passes SIGTERM on to its workers; survivors are killed by their mark afterwards.
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=grace_s)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    survivors = kill_marked(intent.mark)
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=10)
    # Popen reports death by a signal as its negative number.
    code = child.returncode
    by_signal = code is not None and code < 0
    exited = JobStatus.exited(None if by_signal else code, -code if by_signal else None, "supervisor")
    state, cause = ended or (exited.state, exited.cause)
    return replace(
        exited,
        state=state,
        cause=cause,
        detail=f"processes {survivors} could not be killed" if survivors else "",
        nodes=(os.uname().nodename,),
        started_unix_s=started_s,
        ended_unix_s=time.time(),
        oom_kills=read_oom_kills() - oom_kills,
    )


def _start(folder: JobFolder, intent: Intent) -> subprocess.Popen[bytes]:
    def restore_signals() -> None:
        """An ignored signal would stay ignored in the job."""
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)

    with folder.log.open("ab") as log:
        return subprocess.Popen(
            intent.command,
            cwd=intent.workdir,
            env={**intent.environment, MARK: intent.mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            restore_signals=True,
            preexec_fn=restore_signals,
        )


def read_oom_kills() -> int:
    """Processes that the kernel has killed for memory since boot, of all containers of the machine."""
    counters = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counters.get("oom_kill", 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
