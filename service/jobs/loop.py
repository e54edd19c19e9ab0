"""Work that is done again and again in a thread of its own."""

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Loop:
    """A failure is logged; the next turn may succeed."""

    def __init__(self, name: str, every_s: float, work: Callable[[], object]) -> None:
        self.name, self._every_s, self._work = name, every_s, work
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stopping.set()
        if self.is_running():
            self._thread.join(timeout_s)

    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._work()
            except Exception:  # noqa: BLE001 - the next turn may succeed
                _log.warning("%s failed and will be tried again", self.name, exc_info=True)
            self._stopping.wait(self._every_s)
