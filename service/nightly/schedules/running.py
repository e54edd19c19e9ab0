"""Does one night of a schedule: claimed under a fence, reported, delivered; handed back where it cannot end.

Steps run at least once. A profile is recorded once by its content, a session once by its key, a workload of
this run that is done is not done again, and whoever was told is not told again.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from service.errors import FencedError, NotFoundError
from service.nightly.definition import parse
from service.nightly.deliver.send import Post
from service.nightly.night import run_night
from service.nightly.schedules.queue import NightQueue
from service.nightly.schedules.sessions import ThroughQueue
from service.nightly.schedules.spec import ScheduleSpec
from service.nightly.workload import Desk, InterruptedNightError
from service.settings import Settings
from service.store.database import Database
from service.store.night_runs import COMPLETED, FAILED, RunRow, claim_run, next_leg, set_run
from service.store.schedules import get_schedule
from service.uploads import Uploads
from service.work.lease import Lease
from service.work.outages import insist, is_outage
from service.work.queue import Queue
from tools.errors import AsapError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NightShop:
    """What every night of a worker works with."""

    settings: Settings
    database: Database
    nights: NightQueue
    sessions: Queue
    uploads: Uploads
    lease: Lease
    must_stop: Callable[[], bool]

    def check(self) -> None:
        if self.must_stop():
            raise InterruptedNightError("this worker stops")
        if not self.lease.is_held():
            raise InterruptedNightError("this worker has lost its lease")


def run_leg(shop: NightShop, run_id: str, leg: int) -> None:
    """Returns when the run has ended, or when another has it; never raises for its failures."""
    row = insist(shop.database, lambda conn: claim_run(conn, run_id, leg, shop.lease.worker))
    if row is None:
        return
    try:
        _run(shop, row)
    except FencedError as error:
        _log.warning("stopped: %s", error)
    except InterruptedNightError as error:
        _hand_back(shop, row, str(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, the run must end with a reason
        if is_outage(error):
            _hand_back(shop, row, f"the database is away: {error}")
            return
        _log.exception("night %s failed", run_id)
        _fail(shop, row, error)


def _hand_back(shop: NightShop, row: RunRow, reason: str) -> None:
    """A new leg does what is left, unless somebody has taken the night over already."""
    _log.warning("night %s handed back: %s", row.id, reason)

    def give(conn: sa.Connection) -> None:
        set_run(conn, row)
        run = next_leg(conn, row.id, row.leg)
        if run is not None:
            shop.nights.enqueue(conn, run)

    try:
        insist(shop.database, give)
    except FencedError as error:
        _log.info("nothing to hand back: %s", error)


def _fail(shop: NightShop, row: RunRow, error: Exception) -> None:
    """Errors of ASAP speak for themselves; of others only the log tells more."""
    reason = str(error) if isinstance(error, AsapError) else f"unexpected {type(error).__name__}; see the log"
    try:
        insist(shop.database, lambda conn: set_run(conn, row, state=FAILED, reason=reason))
    except FencedError as fenced:
        _log.warning("stopped: %s", fenced)


def _run(shop: NightShop, row: RunRow) -> None:
    spec = parse(ScheduleSpec, row.definition or {})
    report = row.report or _report(shop, row, spec)
    if row.report is None:
        insist(shop.database, lambda conn: set_run(conn, row, report=report, outcome=report["outcome"]))
    shop.check()
    told = _post(shop, row).send(report, spec.recipients, row.deliveries or ())
    undelivered = [one for one in told if not one["ok"]]
    reason = f"not told: {undelivered[0]['to']} ({undelivered[0]['answer']})" if undelivered else None
    ended = {"state": COMPLETED, "deliveries": told, "reason": reason}
    insist(shop.database, lambda conn: set_run(conn, row, **ended))


def _report(shop: NightShop, row: RunRow, spec: ScheduleSpec) -> dict[str, Any]:
    with shop.database.read() as conn:
        try:
            schedule = get_schedule(conn, row.tenant, row.schedule_id)
        except NotFoundError:
            raise FencedError(f"the schedule of run {row.id} was removed") from None
    again = ThroughQueue(
        shop.database,
        shop.sessions,
        row.tenant,
        schedule.owner,
        schedule.name,
        row.id,
        spec,
        shop.settings.session_s,
        shop.check,
    )
    desk = Desk(shop.database, row.tenant, Path("/"), shop.uploads, again, row.id)
    return run_night(desk, spec, schedule.name, row.planned_at, lambda _: shop.check())


def _post(shop: NightShop, row: RunRow) -> Post:
    base = shop.settings.public_url
    link = f"{base.rstrip('/')}/v1/schedules/{row.schedule_id}/runs/{row.id}/report" if base else None
    return Post(shop.settings, row.id, link)
