"""Waiting for a job's end, also through an engine that is out of reach for a while."""

import time
from collections.abc import Callable

from tools.launch.errors import LaunchError
from tools.launch.status import JobStatus


def wait_for_end(ask: Callable[[], JobStatus], pause: Callable[[float], None], timeout_s: float) -> JobStatus:
    """Asks at least once. A controller may restart meanwhile: its error counts only when the time is over.

    `pause` is told how many seconds are left.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            status = ask()
        except LaunchError:
            if time.monotonic() >= deadline_s:
                raise
        else:
            if status.has_ended or time.monotonic() >= deadline_s:
                return status
        pause(max(0.0, deadline_s - time.monotonic()))


def has_ended(ask: Callable[[], JobStatus]) -> bool:
    """False where the engine is out of reach: it is asked again."""
    try:
        return ask().has_ended
    except LaunchError:
        return False
