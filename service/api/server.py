"""Runs the API and, by role, the worker in one process: listens, limits connections, stops in time."""

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from service.api.app import AddPages, create_app, make_app_state
from service.api.state import AppState, Metrics
from service.auth import is_loopback
from service.db.access import has_keys
from service.db.engine import Database, open_database
from service.settings import Settings
from service.worker.jobs import prepare, session_queue
from tools.errors import AsapError, InputError

if TYPE_CHECKING:
    from service.worker.worker import Worker


HEADERS_S = 10.0
"""From a connection's first moment, or a request's first byte, to the end of its headers."""
OTHER_FILES = 200
"""Databases, logs, traces and readers of this process need files too."""


def connection_limit(wanted: int) -> int:
    """Within what the process may open."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if open_files == resource.RLIM_INFINITY else max(10, min(wanted, open_files - OTHER_FILES))


def bounded_protocol(max_connections: int, headers_s: float = HEADERS_S) -> type[asyncio.Protocol]:
    """For `uvicorn.Config(http=...)`."""
    limit = connection_limit(max_connections)
    waiting: dict[Any, asyncio.TimerHandle] = {}

    class BoundedProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]
        """Beyond the limit the connection that has waited longest without a request makes room."""

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._await_headers()
            if len(self.connections) > limit:
                next(iter(waiting)).transport.abort()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            is_answering = self.cycle is not None and not self.cycle.response_complete
            if is_answering:
                self._stop_waiting()
            elif self not in waiting and self.timeout_keep_alive_task is None:
                self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _await_headers(self) -> None:
            waiting[self] = asyncio.get_running_loop().call_later(headers_s, self.transport.abort)

        def _stop_waiting(self) -> None:
            timer = waiting.pop(self, None)
            if timer is not None:
                timer.cancel()

    return BoundedProtocol


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
        """Idempotent."""
        if self._stopping is None:
            self._stopping = threading.Thread(target=self._stop, name="worker stop")
            self._stopping.start()

    def finish(self) -> bool:
        """Waits for the end; whether everything was finished or handed back."""
        if self._stopping:
            self._stopping.join()
        return self._went_well

    def _start(self, on_failure: Callable[[], None]) -> None:
        try:
            from service.nightly.run_night import night_jobs
            from service.worker.worker import Worker

            worker = Worker(self._settings, observer=self._metrics, kinds=[night_jobs])
            worker.start()
        except Exception as error:  # the API of this process would accept sessions that no worker runs
            log.error("the worker cannot start: %s", error, exc_info=not isinstance(error, AsapError))
            self._went_well = False
            on_failure()
        else:
            gc.freeze()  # see _get_ready: the worker imported as much again
            self._worker = worker

    def _stop(self) -> None:
        if self._starting:
            self._starting.join()
        if self._worker:
            self._went_well = self._worker.stop() and self._went_well


BACKLOG = 2048
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


def serve(
    settings: Settings, host: str, port: int, role: str, announce: Announce, add_pages: AddPages
) -> bool:
    """Serves until a signal; returns whether all went well."""
    with closing(open_database(settings.database)) as database:
        prepare(settings, database)
        _refuse_strangers(settings, database, host)
        with closing(session_queue(database)) as queue, _listen(host, port) as listening:
            state = make_app_state(settings, database, queue, host)
            if role == "worker":
                from service.worker.worker import lower_priority

                lower_priority(settings)
            return _Process(state, role, announce, add_pages).run(listening)


class _Process:
    def __init__(self, state: AppState, role: str, announce: Announce, add_pages: AddPages) -> None:
        self._state, self._role, self._announce = state, role, announce
        self._worker = WorkerRunner(state.settings, state.metrics) if role != "api" else None
        app = create_app(state, add_pages, only_health=role == "worker")
        config = uvicorn.Config(
            app,
            http=bounded_protocol(state.settings.max_connections),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, round(state.settings.shutdown_s)),
        )
        self._server = _Server(config, self._get_ready, self._begin_stop)

    def run(self, listening: socket.socket) -> bool:
        if self._worker:
            sys.setswitchinterval(SWITCH_S)
        with _signals_left_to(self._give_up):
            self._server.run(sockets=[listening])
        self._begin_stop()
        return self._server.started and (self._worker is None or self._worker.finish())

    def _get_ready(self, address: str) -> None:
        if self._state.authenticator.is_open():
            log.warning(IS_OPEN)
        log.info("listening", extra={"address": address, "role": self._role})
        self._announce(address)
        # What was imported stays: a full collection would look through its 190,000 objects each time, and
        # answer no request for 100 to 200 ms.
        gc.freeze()
        if self._worker:
            self._worker.start(on_failure=self._give_up)

    def _give_up(self) -> None:
        self._server.should_exit = True

    def _begin_stop(self) -> None:
        """Streams of events end, or they would hold the server; the worker takes no more sessions."""
        self._state.stopping.set()
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


def _refuse_strangers(settings: Settings, database: Database, host: str) -> None:
    if is_loopback(host) or settings.jwt_issuer:
        return
    with database.read() as conn:
        if not has_keys(conn):
            allowed = "without an API key only loopback (127.0.0.1); 'asap keys add NAME' makes one"
            raise InputError("--host", host, allowed)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise AsapError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


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
