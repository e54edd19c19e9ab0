"""The worker of a process that also answers requests."""

import gc
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from service.api.metrics import Metrics
from service.settings import Settings
from tools.errors import AsapError

if TYPE_CHECKING:
    from service.work.worker import Worker

log = logging.getLogger("asap.serve")


class WorkerRunner:
    """The worker in threads of its own, so that the API answers while it starts and while it stops."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings, self._metrics = settings, metrics
        self._worker: Worker | None = None
        self._starting: threading.Thread | None = None
        self._stopping: threading.Thread | None = None
        self._went_well = True

    def start(self, on_failure: Callable[[], None]) -> None:
        self._starting = threading.Thread(target=self._start, args=(on_failure,), name="worker start")
        self._starting.start()

    def begin_stop(self) -> None:
        """Again changes nothing."""
        if self._stopping is None:
            self._stopping = threading.Thread(target=self._stop, name="worker stop")
            self._stopping.start()

    def finish(self) -> bool:
        """Waits for the end; whether everything was finished or handed back."""
        if self._stopping:
            self._stopping.join()
        return self._went_well

    def _start(self, on_failure: Callable[[], None]) -> None:
        from service.work.worker import Worker

        worker = Worker(self._settings, observer=self._metrics)
        try:
            worker.start()
        except Exception as error:  # the API of this process would take sessions that nobody runs
            log.error("the worker cannot start: %s", error, exc_info=not isinstance(error, AsapError))
            self._went_well = False
            on_failure()
        else:
            gc.freeze()  # see server.py: the worker imported as much again
            self._worker = worker

    def _stop(self) -> None:
        if self._starting:
            self._starting.join()
        if self._worker:
            self._went_well = self._worker.stop() and self._went_well
