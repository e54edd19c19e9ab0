"""Joins schedules to a worker's process: its workflow, its queue, and the loops that look at the clock."""

from collections.abc import Callable

from dbos import DBOS

from service.nightly.schedules.queue import QUEUE, WORKFLOW, NightQueue
from service.nightly.schedules.running import NightShop, run_leg
from service.nightly.schedules.ticking import tick
from service.settings import Settings
from service.work.leg import Shop
from service.work.loop import Loop

TICK_S = 5.0
HOUR_S, DAY_S = 3600.0, 86_400.0
KEPT_S = 180 * DAY_S
"""Runs with their reports; longer than anything that is planned again after a clock was set back."""
Note = Callable[[str, bool], None]
"""Told when a night begins (True) and ends in this worker."""


class Nights:
    """`register` before DBOS is launched, `loops` after it."""

    name = QUEUE

    def __init__(self, settings: Settings, shop: Shop, tick_s: float = TICK_S) -> None:
        self._queue = NightQueue(shop.database)
        self._database, self._lease_s, self._tick_s = shop.database, settings.lease_s, tick_s
        self._shop = NightShop(
            settings, shop.database, self._queue, shop.queue, shop.uploads, shop.lease, shop.must_stop
        )

    def register(self, note: Note) -> None:
        def run_night(run_id: str, leg: int) -> None:
            note(run_id, True)
            try:
                run_leg(self._shop, run_id, leg)
            finally:
                note(run_id, False)

        # Our own limit on claims replaces DBOS's on recoveries.
        DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)(run_night)

    def loops(self) -> list[Loop]:
        self._queue.set_limits()
        return [
            Loop("schedules", self._tick_s, lambda: tick(self._database, self._queue)),
            Loop("nights", self._lease_s, self._look_after),
            Loop("old nights", HOUR_S, lambda: self._queue.forget_old(KEPT_S)),
        ]

    def _look_after(self) -> None:
        self._queue.take_over(self._lease_s)
        self._queue.reconcile(self._lease_s)

    def close(self) -> None:
        self._queue.close()
