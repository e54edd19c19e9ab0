"""The process beside a local job: starts it once, ends it at its limit or on demand, records how it ended.

python -m tools.launch.supervisor FOLDER GRACE_S

It outlives the process that started it. A lock on the folder lets one supervisor run; files of an earlier one
keep the next from running the job again. SIGTERM ends the job. A pid alone may be reused and survives no
reboot, so a process is known by its start and its boot, and the processes of a job by a mark in their
environment. Standard library only.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.launch.files import CANCELLED, FINAL, INTENT, LOG, write_whole
from tools.launch.status import MARK, Cause, Intent, JobStatus, State, exit_state

_PROC = Path("/proc")
_PATIENCE_S = 10.0


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


LOCK, PROCESS = "supervisor.lock", "process.json"
_POLL_S = 0.1
_OOM_COUNTER = "oom_kill"
_ENDED_BY = {Cause.CANCELLED: State.CANCELLED, Cause.WALL_LIMIT: State.FAILED}


def main(argv: list[str]) -> int:
    """Returns when the supervisor proper, a child of this process, has taken the job or left it alone."""
    folder, grace_s = Path(argv[0]), float(argv[1])
    read_end, write_end = os.pipe()
    if os.fork():
        os.close(write_end)
        os.read(read_end, 1)
        return 0
    os.setsid()
    os.close(read_end)
    try:
        _supervise(folder, grace_s, ready=write_end)
    except BaseException:  # noqa: BLE001 - nothing above this process could report it
        traceback.print_exc()
    finally:
        os._exit(0)


def _supervise(folder: Path, grace_s: float, ready: int) -> None:
    if not _claim(folder):
        return
    end = _EndRequest()
    own = identify(os.getpid())
    assert own is not None
    _write(folder / PROCESS, asdict(own))
    os.close(ready)
    status = _run(folder, Intent.from_json((folder / INTENT).read_text(encoding="utf-8")), grace_s, end)
    _write(folder / FINAL, asdict(status))


def _claim(folder: Path) -> bool:
    """Whether the job is ours; if another supervisor holds it, returns once that one is recorded."""
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while not (folder / PROCESS).exists():
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return not any((folder / name).exists() for name in (PROCESS, FINAL, CANCELLED))
        time.sleep(_POLL_S)
    return False


class _EndRequest:
    """Set by SIGTERM; no other signal may interrupt a supervisor."""

    def __init__(self) -> None:
        self.requested = False
        signal.signal(signal.SIGTERM, self._on_signal)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, frame: object) -> None:
        self.requested = True


def _run(folder: Path, intent: Intent, grace_s: float, end: _EndRequest) -> JobStatus:
    started_s, oom_kills = time.time(), read_oom_kills()
    try:
        child = _start(folder, intent)
    except (OSError, ValueError) as error:
        detail = f"cannot start {intent.command[0]!r}: {error}"
        return JobStatus(State.FAILED, Cause.START_FAILURE, detail=detail, source="supervisor")
    cause = _watch(child, intent.wall_s, end)
    if cause is not Cause.EXIT:
        _terminate(child, grace_s)
    survivors = kill_marked(intent.mark)
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=10)
    exit_status, signal_number = _exit_of(child.returncode)
    return JobStatus(
        _ENDED_BY.get(cause) or exit_state(exit_status, signal_number),
        cause,
        exit_status,
        signal_number,
        detail=f"processes {survivors} could not be killed" if survivors else "",
        source="supervisor",
        nodes=(os.uname().nodename,),
        started_unix_s=started_s,
        ended_unix_s=time.time(),
        oom_kills=read_oom_kills() - oom_kills,
    )


def _start(folder: Path, intent: Intent) -> subprocess.Popen[bytes]:
    with (folder / LOG).open("ab") as log:
        return subprocess.Popen(
            intent.command,
            cwd=intent.workdir,
            env={**intent.environment, MARK: intent.mark},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            restore_signals=True,
            # An ignored signal would stay ignored in the job.
            preexec_fn=_default_signals,
        )


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _watch(child: subprocess.Popen[bytes], wall_s: float, end: _EndRequest) -> Cause:
    deadline_s = time.monotonic() + wall_s
    while child.poll() is None:
        if end.requested:
            return Cause.CANCELLED
        if time.monotonic() >= deadline_s:
            return Cause.WALL_LIMIT
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=_POLL_S)
    return Cause.EXIT


def _terminate(child: subprocess.Popen[bytes], grace_s: float) -> None:
    """torchrun passes SIGTERM on to its workers; survivors are killed by their mark afterwards."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(timeout=grace_s)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _exit_of(returncode: int | None) -> tuple[int | None, int | None]:
    """(exit status, signal): Popen reports death by a signal as its negative number."""
    if returncode is None:
        return None, None
    return (None, -returncode) if returncode < 0 else (returncode, None)


def read_oom_kills() -> int:
    """Processes that the kernel has killed for memory since boot, of all containers of the machine."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == _OOM_COUNTER:
            return int(value)
    return 0


def _write(path: Path, content: object) -> None:
    write_whole(path, json.dumps(content, indent=1) + "\n", only_first=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
