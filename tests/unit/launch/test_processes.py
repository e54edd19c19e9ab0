"""Processes told apart by pid, start time and boot."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tools.launch.processes import MARK, find_marked, identify, kill_marked, send_signal

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    environment = {MARK: "test.mark"}
    with subprocess.Popen(SLEEP, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield process
        process.kill()


def test_a_process_is_known_until_it_ends(sleeper: subprocess.Popen[str]) -> None:
    known = identify(sleeper.pid)
    assert known is not None
    assert known.is_alive()
    sleeper.kill()
    sleeper.wait()
    assert not known.is_alive()
    assert identify(sleeper.pid) is None


def test_a_zombie_is_not_alive(sleeper: subprocess.Popen[str]) -> None:
    known = identify(sleeper.pid)
    assert known is not None
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not known.is_alive()


def test_another_start_time_or_boot_is_another_process(sleeper: subprocess.Popen[str]) -> None:
    known = identify(sleeper.pid)
    assert known is not None
    for other in (replace(known, start_ticks=known.start_ticks + 1), replace(known, boot_id="other")):
        assert not other.is_alive()
        assert not send_signal(other, signal.SIGKILL)
    assert known.is_alive()


def test_a_name_with_spaces_and_parentheses_is_no_obstacle() -> None:
    rename = "open('/proc/self/comm', 'w').write('a) S 1 (b')"
    code = f"import time; {rename}; print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        known = identify(process.pid)
        assert known is not None
        assert send_signal(known, signal.SIGKILL)
        process.wait()
        assert not known.is_alive()


def test_marked_processes_are_found_and_killed(sleeper: subprocess.Popen[str]) -> None:
    assert [process.pid for process in find_marked("test.mark")] == [sleeper.pid]
    assert list(find_marked("test.mar")) == []
    assert kill_marked("test.mark") == []
    assert sleeper.wait() == -signal.SIGKILL


def test_no_process_has_the_pid_of_nobody() -> None:
    assert identify(2**22 + 1) is None
