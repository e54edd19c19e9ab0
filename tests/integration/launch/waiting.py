"""Waiting for a fact, for as long as a busy machine may take, and what a job must not leave behind."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from tools.launch.processes import find_marked

WAIT_S = 120.0


def until(fact: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not fact():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def processes_of(root: Path) -> list[int]:
    """Of all jobs in this folder: none may be left when a test is over."""
    intents = [json.loads(path.read_text()) for path in root.glob("*/intent.json")]
    return [process.pid for intent in intents for process in find_marked(intent["mark"])]
