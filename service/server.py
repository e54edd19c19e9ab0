"""Runs the API and, by role, the worker in one process: listens, limits connections, stops in time."""

import gc
import logging
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import uvicorn

from service.access.authenticator import is_loopback
from service.access.store import has_keys
from service.app import create_app, make_app_state
from service.db.engine import open_database, retry_transaction
from service.db.outages import CONNECTION_ERRORS
from service.disk import MIN_FREE_BYTES
from service.errors import FullDiskError
from service.http.computing import Computing
from service.http.connections import bounded_protocol
from service.http.metrics import Metrics
from service.http.openapi import describe
from service.http.state import AppState
from service.jobs.engine import prepare
from service.sessions.dispatch import session_queue
from service.settings import Settings, make_data_folder
from tools.errors import AsapError, InputError

if TYPE_CHECKING:
    from service.jobs.worker import Worker


BACKLOG = 4096
SEND_BUFFER_BYTES = 128 << 10
"""What the kernel takes of a response before the client reads it (it doubles the figure); by default it takes
megabytes, which slow readers would make it copy. Enough for 2.5 MB/s over 100 ms."""
KEEP_ALIVE_S = 30
SWITCH_S = 0.0005
"""How long a thread that computes may keep the interpreter from one that answers. Python's own 5 ms are felt
at every change of threads: with sessions running in this process p95 of a read fell from 115 to 76 ms on a
busy machine of two cores, and no fewer sessions were done."""
IS_OPEN = (
    "no API key exists: only this machine is answered, and everyone on it may do everything; "
    "'asap keys add NAME' makes the first key"
)
Announce = Callable[[str], None]
"""Receives the address as soon as the server listens on it."""
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
        def start_worker() -> None:
            try:
                from service.worker import make_worker

                worker = make_worker(self._settings, observer=self._metrics)
                worker.start(gives_up=lambda: self._stopping is not None)
            except Exception as error:  # the API of this process would accept sessions that no worker runs
                log.error("the worker cannot start: %s", error, exc_info=not isinstance(error, AsapError))
                self._went_well = False
                on_failure()
            else:
                gc.freeze()  # see _get_ready: the worker imported as much again
                self._worker = worker

        self._starting = threading.Thread(target=start_worker, name="worker start")
        self._starting.start()

    def begin_stop(self) -> None:
        """Idempotent."""

        def stop_worker() -> None:
            if self._starting:
                self._starting.join()
            if self._worker:
                self._went_well = self._worker.stop() and self._went_well

        if self._stopping is None:
            self._stopping = threading.Thread(target=stop_worker, name="worker stop")
            self._stopping.start()

    def finish(self) -> bool:
        """Waits for the end; whether everything was finished or handed back."""
        if self._stopping:
            self._stopping.join()
        return self._went_well


def serve(settings: Settings, host: str, port: int, role: str, announce: Announce) -> bool:
    """Serves until a signal; returns whether all went well."""
    free = shutil.disk_usage(make_data_folder(settings.data_dir)).free
    if free < MIN_FREE_BYTES:
        raise FullDiskError(
            f"the disk of {settings.data_dir} is full: {free >> 20} MiB are free, "
            f"{MIN_FREE_BYTES >> 20} MiB are needed; make room, or name another folder by ASAP_DATA_DIR"
        )
    with closing(open_database(settings.database)) as database:
        prepare(settings, database)
        may_be_open = is_loopback(host) or settings.jwt_issuer
        if not may_be_open and not retry_transaction(database, has_keys):
            rule = "without an API key only loopback (127.0.0.1); 'asap keys add NAME' makes one"
            raise InputError("--host", host, rule)
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise AsapError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        listening.setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES
        )  # its connections inherit it
        with closing(session_queue(database)) as queue, listening:
            computes = settings.compute_processes and role != "worker"
            computing = Computing(settings, host, database) if computes else None
            state = make_app_state(settings, database, queue, host, computing=computing)
            if role == "worker":
                from service.jobs.worker import lower_priority

                lower_priority(settings)
            return _Process(state, role, announce).run(listening)


class _Process:
    def __init__(self, state: AppState, role: str, announce: Announce) -> None:
        self._state, self._role, self._announce = state, role, announce
        self._worker = WorkerRunner(state.settings, state.metrics) if role != "api" else None
        app = create_app(state, only_health=role == "worker")
        settings = state.settings
        config = uvicorn.Config(
            app,
            http=bounded_protocol(
                settings.max_connections,
                settings.address_connections,
                settings.requests_per_minute,
                settings.proxies,
            ),
            # Believed of this machine too: without keys it tells callers from elsewhere.
            forwarded_allow_ips=["127.0.0.1", *settings.proxies],
            backlog=BACKLOG,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(settings.shutdown_s)),
        )
        self._app, self._server = app, _Server(config, self._get_ready, self._begin_stop)

    def run(self, listening: socket.socket) -> bool:
        sys.setswitchinterval(SWITCH_S)
        with _signals_left_to(self._give_up):
            self._server.run(sockets=[listening])
        self._begin_stop()
        return self._server.started and (self._worker is None or self._worker.finish())

    def _get_ready(self, address: str) -> None:
        with suppress(*CONNECTION_ERRORS):  # callers are told when it is back
            if self._state.authenticator.is_open():
                log.warning(IS_OPEN)
        log.info("listening", extra={"address": address, "role": self._role})
        self._announce(address)
        # What was imported stays: a full collection would look through its 190,000 objects each time, and
        # answer no request for 100 to 200 ms.
        gc.freeze()
        if self._worker:
            self._worker.start(on_failure=self._give_up)
        if self._state.computing:
            self._state.computing.start()
        threading.Thread(target=describe, args=(self._app,), name="describe", daemon=True).start()

    def _give_up(self) -> None:
        self._server.should_exit = True

    def _begin_stop(self) -> None:
        """Streams of events end, or they would hold the server; the worker takes no more sessions."""
        self._state.stopping.set()
        if self._state.computing:
            self._state.computing.close()
        if self._worker:
            self._worker.begin_stop()


class _Server(uvicorn.Server):
    """Reports when it listens and when it must stop."""

    def __init__(self, config: uvicorn.Config, ready: Announce, stopping: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready, self._stopping = ready, stopping

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Not where the signal is handled: that may be amid anything, with any lock held, even this one's."""
        self._stopping()
        await super().shutdown(sockets)


@contextmanager
def _signals_left_to(stopping: Callable[[], None]) -> Iterator[None]:
    """For before uvicorn handles signals itself, and after: it raises them again when it has stopped."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stopping()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
