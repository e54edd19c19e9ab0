"""One workload's night: record what is new, compare, look for the cause, re-optimize."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graph.request import parse_request
from service.nightly.config import scenario_of
from service.nightly.definition import Policy, Workload
from service.nightly.outcome import (
    STALE,
    attribution_of,
    brief,
    broken,
    diagnosis_of,
    finding_of,
    names_of,
    stale_reason,
    trend_of,
)
from service.nightly.proposals import NOTHING_PLANNED, doubt, replan
from service.nightly.reoptimize import Reoptimizer
from service.nightly.sources import Source, find_sources, find_uploads
from service.store.database import Database
from service.store.nights import WorkloadRow, add_night, find_workload, list_nights, set_workload
from service.uploads import Uploads
from service.work.outages import is_outage
from tools.errors import AsapError, InputError
from tools.nightly.advice import advise
from tools.nightly.contract import as_run
from tools.nightly.metrics_night import read_metrics_night
from tools.nightly.night import Night
from tools.nightly.profile_night import read_profile_night
from tools.nightly.review import Review, review
from tools.nightly.worth import gained_device_hours

MOST_NEW = 60
"""Nights taken in at once, where a history begins or was interrupted."""
Data = dict[str, Any]

_log = logging.getLogger(__name__)


class InterruptedNightError(Exception):
    """The night must go on elsewhere, or later: nothing is wrong with the workload."""


@dataclass(frozen=True)
class Desk:
    """What every workload of a run works with."""

    database: Database
    tenant: str
    base: Path
    """What patterns and files of scenarios are relative to."""
    uploads: Uploads
    reoptimizer: Reoptimizer | None
    run_id: str | None = None
    clock: Callable[[], float] = time.time


@dataclass(frozen=True)
class Taken:
    """The newest night, and what its profile says besides."""

    night: Night
    source: Source
    diagnosis: Data | None
    is_new: bool
    told_until: float
    """The time of the last night before this run."""
    notes: list[str]


def run_workload(desk: Desk, workload: Workload, policy: Policy) -> Data:
    """Raises for nothing that is wrong with one workload, whatever it is: the others must still run."""
    row = _find_last(desk, workload.name)
    before = row.outcome if row else {}
    if row and desk.run_id and row.run_id == desk.run_id:
        return before  # done by a leg of this run that did not end
    try:
        said = _run(desk, workload, policy, before)
    except AsapError as error:
        said = broken(workload, str(error), before)
    except InterruptedNightError:
        raise
    except Exception as error:
        if is_outage(error):
            raise
        _log.exception("workload %s failed", workload.name)
        said = broken(workload, f"unexpected {type(error).__name__}: {error}", before)
    _keep(desk, workload.name, said)
    return said


def _find_last(desk: Desk, name: str) -> WorkloadRow | None:
    with desk.database.read() as conn:
        return find_workload(conn, desk.tenant, name)


def _run(desk: Desk, workload: Workload, policy: Policy, before: Data) -> Data:
    described = scenario_of(workload, desk.base)
    _check(described)
    taken = _take(desk, workload, described, before)
    with desk.database.read() as conn:
        nights = list_nights(conn, desk.tenant, workload.name)
    told_until = taken.told_until if taken.is_new else None
    found = review(nights, workload.hours_per_day, policy.least_change, told_until=told_until)
    status = found.status if taken.is_new else STALE
    today = as_run(described, taken.night.surroundings.plan)
    planned = _plan(desk, workload, policy, before, today, taken, found)
    lost, gained = found.lost_device_hours_per_day, planned["gained_device_hours_per_day"]
    return {
        "name": workload.name,
        "status": status,
        "reason": None if taken.is_new else stale_reason(taken.night),
        **names_of(today),
        "hours_per_day": workload.hours_per_day,
        "night": brief(taken.night),
        "num_nights": len(found.nights),
        "num_other_nights": found.others,
        "is_alarm": taken.is_new and found.is_regression,
        "findings": [finding_of(one, found) for one in found.findings],
        "attribution": attribution_of(found),
        "diagnosis": taken.diagnosis,
        "advice": advise(found),
        "lost_device_hours_per_day": lost,
        **planned,
        "wasted_device_hours_per_day": max(lost, gained),
        "trend": trend_of(found),
        "notes": [*taken.notes, *taken.night.notes, *doubt(planned["best"], taken.night.step_time_s)],
    }


def _check(described: Data) -> None:
    try:
        parse_request(described)
    except InputError as error:
        raise InputError(f"scenario.{error.field}", error.given, error.allowed) from None


def _take(desk: Desk, workload: Workload, described: Data, before: Data) -> Taken:
    """Records every night since the one last told of; the newest must be readable, others are noted."""
    told = before.get("night")
    with desk.database.read() as conn:
        known = list_nights(conn, desk.tenant, workload.name, limit=1)
        uploaded = find_uploads(conn, desk.tenant, workload, desk.uploads) if workload.uploads else None
    sources = find_sources(workload, desk.base, desk.clock()) if uploaded is None else uploaded
    last_s = told["at"] if told and known else float("-inf")
    fresh = [one for one in sources if one.at > last_s][-MOST_NEW:]
    if not fresh:
        return Taken(known[0], sources[-1], before.get("diagnosis"), False, last_s, [])
    notes = []
    for source in fresh[:-1]:
        try:
            _record(desk, workload, described, source)
        except AsapError as error:
            notes.append(f"an earlier night was left out: {error}")
    night, diagnosis = _record(desk, workload, described, fresh[-1])
    is_new = not told or night.key != told["key"]
    return Taken(night, fresh[-1], diagnosis, is_new, last_s, notes)


def _record(desk: Desk, workload: Workload, described: Data, source: Source) -> tuple[Night, Data | None]:
    diagnosis: Data | None = None
    if source.is_metrics:
        night = read_metrics_night(described, source.path)
    else:
        night, report = read_profile_night(described, source.path)
        diagnosis = diagnosis_of(report.data)
    with desk.database.begin() as conn:
        add_night(conn, desk.tenant, workload.name, night)
    return night, diagnosis


def _plan(
    desk: Desk, workload: Workload, policy: Policy, before: Data, today: Data, taken: Taken, found: Review
) -> Data:
    """The best plan, the open proposal, and what it would free."""
    if not policy.reoptimize or desk.reoptimizer is None:
        return {**NOTHING_PLANNED, "gained_device_hours_per_day": 0.0}
    request = policy.request(today)
    if taken.source.reference:
        request["traces"] = taken.source.reference
    is_slower = taken.is_new and found.is_regression
    planned = replan(desk.reoptimizer, workload.name, request, before, policy.gain, is_slower, desk.clock())
    speedup = (planned["proposal"] or {}).get("speedup") or 1.0
    gained = gained_device_hours(found.nights[-1].num_devices, speedup, workload.hours_per_day)
    return {**planned, "gained_device_hours_per_day": gained}


def _keep(desk: Desk, name: str, said: Data) -> None:
    proposal = said["proposal"] or {}
    row = WorkloadRow(
        tenant=desk.tenant,
        name=name,
        status=said["status"],
        reason=said["reason"],
        wasted_device_hours_per_day=said["wasted_device_hours_per_day"],
        updated_at=desk.clock(),
        run_id=desk.run_id,
        session_id=proposal.get("session_id"),
        outcome=said,
    )
    with desk.database.begin() as conn:
        set_workload(conn, row)
