"""One local trial at a time: two on the same machine would measure each other.

A lock on a file, which ends with the process that has it. Engines with a queue see to this themselves.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools.trials.order import Watch

PAUSE_S = 0.5


@contextmanager
def own_turn(lock: Path, watch: Watch) -> Iterator[bool]:
    """True when it is ours; False where the trial was cancelled while it waited."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while not _is_taken(descriptor):
            if watch.must_cancel():
                yield False
                return
            time.sleep(PAUSE_S)
        yield True
    finally:
        os.close(descriptor)


def _is_taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
