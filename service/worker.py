"""A worker of all kinds of jobs; `python -m service.worker` runs one until it receives SIGTERM or SIGINT."""

import os
import signal
import sys
import threading
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from tools.errors import AsapError

if TYPE_CHECKING:
    from graph.context import Context
    from service.jobs.worker import Worker
    from service.sessions.log import Observer
    from service.settings import Settings


def make_worker(
    settings: "Settings", context: "Context | None" = None, observer: "Observer | None" = None
) -> "Worker":
    """It runs sessions and the nights of schedules."""
    from service.jobs.worker import Worker
    from service.schedules.night import night_jobs
    from service.sessions.run import session_jobs

    return Worker(settings, [partial(session_jobs, context=context, observer=observer), night_jobs])


def main() -> None:
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # After the signals: these take seconds, in which it may be told to stop already.
    from service.jobs.worker import lower_priority
    from service.logs import configure_logs
    from service.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    lower_priority(settings)
    worker = make_worker(settings)
    worker.start()
    stopping.wait()
    if not worker.stop():
        # Threads that are inside a node cannot be ended; their sessions are free for others by now.
        os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except AsapError as error:
        sys.exit(f"service.worker: {error}")
