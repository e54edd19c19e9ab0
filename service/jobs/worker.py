"""The worker process: runs jobs, renews its lease, takes over from dead workers, shuts down cleanly."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from dbos import DBOS, DBOSConfig

from service.db.engine import Database, open_database
from service.db.locks import lock_for_work
from service.db.outages import CONNECTION_ERRORS, is_outage
from service.errors import HandBackError
from service.jobs.engine import APPLICATION, START_WAIT_S, VERSION, Jobs, prepare
from service.jobs.loop import Loop
from service.jobs.webhooks import Webhooks
from service.jobs.workers import Lease
from service.settings import Settings

HEARTBEATS_PER_LEASE = 3
NICENESS = 19
"""The lowest priority."""
HAND_BACK_S = 5.0
"""To write that a job is handed back, after the time to finish it is over."""
WEBHOOK_POLL_S = 0.5
START_PAUSE_S = 0.5
QUEUE_POOL = 8
"""Connections of DBOS itself."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerDeps:
    """What the jobs of all kinds stand on."""

    settings: Settings
    database: Database
    lease: Lease
    must_stop: Callable[[], bool]
    """Whether the time to finish is over."""
    resources: ExitStack
    """Closed when the worker has stopped."""

    def check(self) -> None:
        """Raises HandBackError if this worker may not go on."""
        if self.must_stop():
            raise HandBackError("this worker stops")
        if not self.lease.is_held():
            raise HandBackError("this worker has lost its lease")


JobsFactory = Callable[[WorkerDeps], Jobs[Any]]


class Worker:
    """One per process: DBOS keeps its workflows by name."""

    def __init__(self, settings: Settings, kinds: Sequence[JobsFactory]) -> None:
        self._settings, self._kinds = settings, kinds
        self._open = ExitStack()
        self._loops: list[Loop] = []
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._hand_back_at = math.inf

    def start(self, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Returns when jobs are being taken; a database that is away meanwhile is waited for.

        Raises BusyFolderError if SQLite has a worker already.
        """
        ends_at = time.monotonic() + START_WAIT_S
        while True:
            try:
                return self._start()
            except Exception as error:
                if not is_outage(error) or gives_up() or time.monotonic() > ends_at:
                    raise
                _log.warning("the worker starts again: database unavailable: %s", error)
            time.sleep(START_PAUSE_S)

    def _start(self) -> None:
        settings, database = self._settings, open_database(self._settings.database)
        with ExitStack() as opened:  # closed here if anything below fails
            opened.callback(database.close)
            if database.is_sqlite:
                opened.enter_context(lock_for_work(settings))
            prepare(settings, database)
            self._lease = Lease(database, settings.lease_s)
            self._lease.renew()
            is_over = lambda: time.monotonic() >= self._hand_back_at  # noqa: E731
            deps = WorkerDeps(settings, database, self._lease, is_over, opened)
            jobs = [make(deps) for make in self._kinds]
            for kind in jobs:
                opened.callback(kind.queue.close)
            config: DBOSConfig = {
                "name": APPLICATION,
                "application_version": VERSION,
                "executor_id": self._lease.worker,
                "system_database_url": settings.database,
                "run_migrations": False,
                "sys_db_pool_size": QUEUE_POOL,
                "log_level": "WARNING",
            }
            DBOS(config=config)
            opened.callback(DBOS.destroy, destroy_registry=True)
            for kind in jobs:
                # Our own limit on claims replaces DBOS's on recoveries.
                workflow = DBOS.workflow(name=kind.queue.kind.workflow, max_recovery_attempts=None)
                workflow(self._tracked(kind.run_dispatch))
            DBOS.listen_queues([kind.queue.kind.queue for kind in jobs])
            DBOS.launch()
            for kind in jobs:
                kind.queue.set_limits(kind.per_worker, kind.per_partition, kind.poll_s)
            self._loops = self._make_loops(database, jobs)
            for loop in self._loops:
                loop.start()
            self._open = opened.pop_all()
        _log.info("worker %s ready", self._lease.worker)

    def _tracked(self, run_dispatch: Callable[[str, str, int], None]) -> Callable[[str, int], None]:
        """The workflow of a kind of jobs, whose running ones are known when the worker stops."""

        def workflow(id: str, dispatch_no: int) -> None:
            with self._lock:
                self._running.add(id)
            try:
                run_dispatch(self._lease.worker, id, dispatch_no)
            finally:
                with self._lock:
                    self._running.discard(id)

        return workflow

    def _make_loops(self, database: Database, jobs: Sequence[Jobs[Any]]) -> list[Loop]:
        lease_s = self._lease.lease_s
        heartbeat_s = lease_s / HEARTBEATS_PER_LEASE
        loops = [
            Loop("heartbeat", heartbeat_s, self._lease.renew),
            Loop("reconcile", lease_s, lambda: [kind.queue.reconcile(quiet_s=lease_s) for kind in jobs]),
            *(loop for kind in jobs for loop in kind.loops),
        ]
        if not database.is_sqlite:
            take_over = lambda: [kind.queue.take_over(lease_s) for kind in jobs]  # noqa: E731
            loops.append(Loop("takeover", heartbeat_s, take_over))
        if self._settings.webhook_secret:
            loops.append(Loop("webhooks", WEBHOOK_POLL_S, Webhooks(self._settings, database).start_due))
        return loops

    def stop(self) -> bool:
        """Takes no more jobs, finishes or hands back those it has; returns whether it could."""
        self._hand_back_at = time.monotonic() + self._settings.shutdown_s
        limit_s = math.ceil(self._settings.shutdown_s + HAND_BACK_S)
        DBOS.destroy(destroy_registry=True, workflow_completion_timeout_sec=limit_s)
        with self._lock:
            left = sorted(self._running)
        for loop in self._loops:
            loop.stop()
        if left:
            _log.warning("%d jobs reached no point at which they could be handed back", len(left))
        try:
            self._lease.give_up()
        except CONNECTION_ERRORS:
            _log.warning("could not release the lease: database unavailable")
        if not left:
            self._open.close()
        return not left


def lower_priority(settings: Settings) -> None:
    """Sessions compute for long, and the API on the same machine must still answer quickly.
    Trials inherit the priority, so a worker that may measure keeps its own."""
    if settings.launch_templates is None:
        os.nice(NICENESS)
