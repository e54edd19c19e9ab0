"""The worker process: runs sessions, renews its lease, takes over from dead workers, shuts down cleanly."""

import logging
import math
import threading
import time
from contextlib import ExitStack

from dbos import DBOS, DBOSConfig

from graph.context import Context
from service.checkpoints import open_checkpoints
from service.db.engine import AWAY, Database, lock_for_work, open_database
from service.nightly.run_night import Nights
from service.runtime import jobs_folder, open_context
from service.settings import Settings
from service.traces import Uploads
from service.worker.cleanup import end_orphans, erase_deleted
from service.worker.jobs import (
    APPLICATION,
    QUEUE,
    VERSION,
    WORKFLOW,
    Lease,
    Loop,
    Queue,
    prepare,
    reconcile,
    take_over,
)
from service.worker.run_session import Observer, Shop, run_dispatch
from service.worker.webhooks import Webhooks
from tools.trials.run import LaunchedTrials

BEATS_A_LEASE = 3
HAND_BACK_S = 5.0
"""To write that a session is handed back, after the time to finish it is over."""
WEBHOOK_POLL_S = 0.5

_log = logging.getLogger(__name__)


class Worker:
    """One a process: DBOS keeps its workflows by name."""

    def __init__(
        self, settings: Settings, context: Context | None = None, observer: Observer | None = None
    ) -> None:
        self._settings, self._context, self._observer = settings, context, observer
        self._open = ExitStack()
        self._loops: list[Loop] = []
        self._running: set[str] = set()
        self._lock = threading.Lock()
        self._hand_back_at = math.inf

    def start(self) -> None:
        """Returns when sessions are being taken. Raises BusyFolderError where SQLite has a worker already."""
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
        queue = Queue(database)
        self._open.callback(queue.close)
        lease = Lease(database, settings.lease_s)
        lease.renew()
        self._lease = lease
        shop = self._shop(database, queue, lease)
        nights = Nights(settings, shop)
        self._open.callback(nights.close)
        self._launch(shop, nights)
        queue.set_limits(settings.worker_sessions, settings.tenant_sessions)
        self._begin_loops(shop, nights)
        _log.info("worker %s takes sessions", lease.worker)

    def _shop(self, database: Database, queue: Queue, lease: Lease) -> Shop:
        with database.alone():
            checkpointer = self._open.enter_context(open_checkpoints(self._settings))
        return Shop(
            database=database,
            queue=queue,
            context=self._context or open_context(self._settings, saves_cases=True),
            checkpointer=checkpointer,
            uploads=Uploads(self._settings),
            lease=lease,
            must_stop=lambda: time.monotonic() >= self._hand_back_at,
            observer=self._observer,
        )

    def _launch(self, shop: Shop, nights: Nights) -> None:
        config: DBOSConfig = {
            "name": APPLICATION,
            "application_version": VERSION,
            "executor_id": shop.lease.worker,
            "system_database_url": self._settings.database,
            "run_migrations": False,
            "log_level": "WARNING",
        }
        DBOS(config=config)
        self._open.callback(DBOS.destroy, destroy_registry=True)

        def run_session(session_id: str, dispatch_no: int) -> None:
            self._note(session_id, begins=True)
            try:
                run_dispatch(shop, session_id, dispatch_no)
            finally:
                self._note(session_id, begins=False)

        # Our own limit on claims replaces DBOS's on recoveries.
        DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)(run_session)
        nights.register(self._note)
        DBOS.listen_queues([QUEUE, nights.name])
        DBOS.launch()

    def _note(self, session_id: str, begins: bool) -> None:
        with self._lock:
            (self._running.add if begins else self._running.discard)(session_id)

    def _begin_loops(self, shop: Shop, nights: Nights) -> None:
        database, queue, lease_s = shop.database, shop.queue, shop.lease.lease_s
        beat_s = lease_s / BEATS_A_LEASE
        self._loops = [
            Loop("heartbeat", beat_s, shop.lease.renew),
            Loop("reconcile", lease_s, lambda: reconcile(database, queue, quiet_s=lease_s)),
            Loop("erase", lease_s, lambda: erase_deleted(database, queue, shop.checkpointer)),
            *self._trial_loops(shop),
            *nights.loops(),
        ]
        if not database.is_sqlite:
            self._loops.append(Loop("takeover", beat_s, lambda: take_over(database, queue, lease_s)))
        if self._settings.webhook_secret:
            self._loops.append(Loop("webhooks", WEBHOOK_POLL_S, Webhooks(self._settings, database).send_due))
        for loop in self._loops:
            loop.start()

    def _trial_loops(self, shop: Shop) -> list[Loop]:
        trials, jobs = shop.context.trials, jobs_folder(self._settings)
        if not isinstance(trials, LaunchedTrials):
            return []
        return [Loop("orphans", shop.lease.lease_s, lambda: end_orphans(shop.database, trials, jobs))]

    def stop(self) -> bool:
        """Takes no more sessions, finishes or hands back those it has, and tells whether it could."""
        self._hand_back_at = time.monotonic() + self._settings.shutdown_s
        limit_s = math.ceil(self._settings.shutdown_s + HAND_BACK_S)
        DBOS.destroy(destroy_registry=True, workflow_completion_timeout_sec=limit_s)
        with self._lock:
            left = sorted(self._running)
        for loop in self._loops:
            loop.stop()
        if left:
            _log.warning("%d sessions did not come to a point where they could be handed back", len(left))
        try:
            self._lease.give_up()
        except AWAY:
            _log.warning("left without saying so: the database is away")
        if not left:
            self._open.close()
        return not left
