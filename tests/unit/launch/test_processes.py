"""Processes are identified by pid, start time and boot."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tools.launch.status import MARK
from tools.launch.supervisor import ProcessIdentity, find_marked, identify, kill_marked, send_signal

# A name with spaces and parentheses makes /proc/PID/stat hard to read.
RENAME = "open('/proc/self/comm', 'w').write('a) S 1 (b')"
SLEEP = [sys.executable, "-c", f"import time; {RENAME}; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(SLEEP, env={MARK: "test.mark"}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


@pytest.fixture
def identity(sleeper: subprocess.Popen[str]) -> ProcessIdentity:
    known = identify(sleeper.pid)
    assert known is not None
    return known


def test_a_process_is_alive_until_it_ends_and_a_zombie_is_not(
    sleeper: subprocess.Popen[str], identity: ProcessIdentity
) -> None:
    assert identity.is_alive()
    assert send_signal(identity, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not identity.is_alive()
    sleeper.wait()
    assert not identity.is_alive()
    assert not send_signal(identity, signal.SIGKILL)
    assert identify(sleeper.pid) is None


def test_another_start_time_or_boot_is_another_process(identity: ProcessIdentity) -> None:
    for other in (replace(identity, start_ticks=identity.start_ticks + 1), replace(identity, boot_id="no")):
        assert not other.is_alive()
        assert not send_signal(other, signal.SIGKILL)
    assert identity.is_alive()


def test_marked_processes_are_found_and_killed(sleeper: subprocess.Popen[str]) -> None:
    assert [process.pid for process in find_marked("test.mark")] == [sleeper.pid]
    assert list(find_marked("test.mar")) == []
    assert kill_marked("test.mark") == []
    assert sleeper.wait() == -signal.SIGKILL
