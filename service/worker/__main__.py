"""`python -m service.worker`: runs one worker until it receives SIGTERM or SIGINT."""

import os
import signal
import sys
import threading
from types import FrameType

from tools.errors import AsapError


def main() -> None:
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    # After the signals: these take seconds, in which it may be told to stop already.
    from service.logs import configure_logs
    from service.nightly.run_night import night_jobs
    from service.settings import load_settings
    from service.worker.worker import Worker, lower_priority

    settings = load_settings()
    configure_logs(settings)
    lower_priority(settings)
    worker = Worker(settings, kinds=[night_jobs])
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
