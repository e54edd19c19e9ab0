"""Identifies and ends processes of this machine reliably: a pid alone may be reused and survives no reboot.

A job's processes are known by a mark in their environment.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "ASAP_JOB"
_PROC = Path("/proc")


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


def kill_marked(value: str, patience_s: float = 10.0) -> list[int]:
    """Kills until none is left; gives the pids that would not die (stuck in the kernel) in time."""
    deadline_s = time.monotonic() + patience_s
    while survivors := list(find_marked(value)):
        for process in survivors:
            send_signal(process, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            return [process.pid for process in survivors]
        time.sleep(0.02)
    return []
