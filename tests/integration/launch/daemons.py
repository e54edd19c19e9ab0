"""Daemons in the foreground, started one after the other and ended in the opposite order."""

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

START_S = 60.0
STOP_S = 15.0


class Daemons:
    """Of one folder, which has their output too."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = environment
        self._output = folder / "daemons.txt"
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for daemon in reversed(self._running):
            daemon.terminate()
            try:
                daemon.wait(timeout=STOP_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def start(self, words: Sequence[str], ready: Callable[[], bool] | None = None) -> None:
        with self._output.open("ab") as output:
            self._running.append(
                subprocess.Popen(
                    words,
                    env=dict(self._environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.folder,
                )
            )
        if ready:
            self.until(ready)

    def until(self, fact: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + START_S
        while not fact():
            dead = [daemon.args for daemon in self._running if daemon.poll() is not None]
            if dead or time.monotonic() > deadline_s:
                said = self._output.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"the daemons do not come up; ended: {dead}; said: {said}")
            time.sleep(0.1)
