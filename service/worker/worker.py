"""The worker process: runs jobs, renews its lease, takes over from dead workers, shuts down cleanly."""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from dbos import DBOS, DBOSConfig

from graph.context import Context
from service.checkpoints import open_checkpoints
from service.db.engine import CONNECTION_ERRORS, Database, lock_for_work, open_database
from service.runtime import jobs_folder, open_context
from service.settings import Settings
from service.uploads import Uploads
from service.worker.cleanup import end_orphans, erase_deleted
from service.worker.jobs import (
    APPLICATION,
    VERSION,
    Jobs,
    Lease,
    Loop,
    prepare,
    reconcile,
    run_dispatch,
    session_queue,
    take_over,
)
from service.worker.run_session import EVENTS_EVERY_S, Observer, WorkerDeps, run_session
from service.worker.webhooks import Webhooks
from tools.trials.run import LaunchedTrials

HEARTBEATS_PER_LEASE = 3
NICENESS = 19
"""The lowest priority."""
HAND_BACK_S = 5.0
"""To write that a job is handed back, after the time to finish it is over."""
WEBHOOK_POLL_S = 0.5
SESSION_POLL_S = 0.1
QUEUE_POOL = 8
"""Connections of DBOS itself."""

JobsFactory = Callable[[WorkerDeps], Jobs[Any]]

_log = logging.getLogger(__name__)


class Worker:
    """One per process: DBOS keeps its workflows by name.

    Sessions are always run; `kinds` are further kinds of jobs (nights of schedules), which entry points add.
    """

    def __init__(
        self,
        settings: Settings,
        context: Context | None = None,
        observer: Observer | None = None,
        kinds: Sequence[JobsFactory] = (),
    ) -> None:
        self._settings, self._context, self._observer, self._kinds = settings, context, observer, kinds
        self._open = ExitStack()
        self._loops: list[Loop] = []
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._hand_back_at = math.inf

    def start(self) -> None:
        """Returns when jobs are being taken. Raises BusyFolderError if SQLite has a worker already."""
        try:
            self._start()
        except BaseException:
            self._open.close()
            raise

    def _start(self) -> None:
        settings, database = self._settings, open_database(self._settings.database)
        self._open.callback(database.close)
        if database.is_sqlite:
            self._open.enter_context(lock_for_work(settings))
        prepare(settings, database)
        lease = Lease(database, settings.lease_s)
        lease.renew()
        self._lease = lease
        deps = self._deps(database, lease)
        jobs = [_session_jobs(deps), *(make(deps) for make in self._kinds)]
        for kind in jobs:
            self._open.callback(kind.queue.close)
        self._launch(jobs)
        for kind in jobs:
            kind.queue.set_limits(kind.per_worker, kind.per_partition, kind.poll_s)
        self._begin_loops(deps, jobs)
        _log.info("worker %s ready", lease.worker)

    def _deps(self, database: Database, lease: Lease) -> WorkerDeps:
        with database.alone():
            checkpointer = self._open.enter_context(open_checkpoints(self._settings))
        return WorkerDeps(
            settings=self._settings,
            database=database,
            queue=session_queue(database),
            context=self._context or open_context(self._settings, saves_cases=True),
            checkpointer=checkpointer,
            uploads=Uploads(self._settings),
            lease=lease,
            must_stop=lambda: time.monotonic() >= self._hand_back_at,
            observer=self._observer,
        )

    def _launch(self, jobs: Sequence[Jobs[Any]]) -> None:
        config: DBOSConfig = {
            "name": APPLICATION,
            "application_version": VERSION,
            "executor_id": self._lease.worker,
            "system_database_url": self._settings.database,
            "run_migrations": False,
            "sys_db_pool_size": QUEUE_POOL,
            "log_level": "WARNING",
        }
        DBOS(config=config)
        self._open.callback(DBOS.destroy, destroy_registry=True)
        for kind in jobs:
            self._register(kind)
        DBOS.listen_queues([kind.queue.kind.queue for kind in jobs])
        DBOS.launch()

    def _register(self, jobs: Jobs[Any]) -> None:
        def workflow(id: str, dispatch_no: int) -> None:
            with self._lock:
                self._running.add(id)
            try:
                run_dispatch(jobs.queue, self._lease.worker, jobs.run, id, dispatch_no)
            finally:
                with self._lock:
                    self._running.discard(id)

        # Our own limit on claims replaces DBOS's on recoveries.
        DBOS.workflow(name=jobs.queue.kind.workflow, max_recovery_attempts=None)(workflow)

    def _begin_loops(self, deps: WorkerDeps, jobs: Sequence[Jobs[Any]]) -> None:
        database, lease_s = deps.database, deps.lease.lease_s
        heartbeat_s = lease_s / HEARTBEATS_PER_LEASE

        def reconcile_all() -> None:
            for kind in jobs:
                reconcile(kind.queue, quiet_s=lease_s)

        def take_over_all() -> None:
            for kind in jobs:
                take_over(kind.queue, lease_s)

        self._loops = [
            Loop("heartbeat", heartbeat_s, deps.lease.renew),
            Loop("events", EVENTS_EVERY_S, deps.flush_logs),
            Loop("reconcile", lease_s, reconcile_all),
            Loop("cleanup", lease_s, lambda: erase_deleted(database, deps.queue, deps.checkpointer)),
            *self._trial_loops(deps),
            *(loop for kind in jobs for loop in kind.loops),
        ]
        if not database.is_sqlite:
            self._loops.append(Loop("takeover", heartbeat_s, take_over_all))
        if self._settings.webhook_secret:
            self._loops.append(Loop("webhooks", WEBHOOK_POLL_S, Webhooks(self._settings, database).start_due))
        for loop in self._loops:
            loop.start()

    def _trial_loops(self, deps: WorkerDeps) -> list[Loop]:
        trials, jobs = deps.context.trials, jobs_folder(self._settings)
        if not isinstance(trials, LaunchedTrials):
            return []
        return [Loop("orphans", deps.lease.lease_s, lambda: end_orphans(deps.database, trials, jobs))]

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
    """Of this process: sessions compute for long, and the API on the same machine must still answer quickly.
    Trials inherit it, so a worker that may measure keeps its own."""
    if settings.launch_templates is None:
        os.nice(NICENESS)


def _session_jobs(deps: WorkerDeps) -> Jobs[Any]:
    settings = deps.settings
    return Jobs(
        queue=deps.queue,
        run=lambda row: run_session(deps, row),
        per_worker=settings.worker_sessions,
        per_partition=_tenant_limit(deps),
        poll_s=SESSION_POLL_S,
    )


def _tenant_limit(deps: WorkerDeps) -> int:
    """SQLite has one worker: one tenant's slow sessions must leave another's a place."""
    settings = deps.settings
    if not deps.database.is_sqlite:
        return settings.tenant_sessions
    return min(settings.tenant_sessions, max(1, settings.worker_sessions - 1))
