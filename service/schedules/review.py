"""One night: each workload's newest profiles or metrics read, compared, diagnosed, re-optimized, reported."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from graph.request import parse_request
from service import __version__
from service.clusters.usecases import add_runs
from service.db.engine import Database
from service.db.outages import is_outage
from service.errors import HandBackError
from service.schedules.config import Policy, WatchedWorkload, load_scenario
from service.schedules.model import WorkloadRow
from service.schedules.reoptimize import PlanUpdate, Reoptimizer, prediction_warnings, update_proposal
from service.schedules.sources import NightSource, find_sources, find_uploads
from service.schedules.store import add_night, find_workload, list_nights, set_workload
from service.traces.uploads import Uploads
from tools.errors import AsapError, InputError
from tools.model.runs import Measured, Run
from tools.nightly.night import Night, StatedWorkload, with_job_plan
from tools.nightly.read import read_metrics_night, read_profile_night
from tools.nightly.result import (
    BROKEN,
    STALE,
    NightDiagnosis,
    NightReport,
    NightResult,
    report_of,
    summary_of_night,
    trend_of,
)
from tools.nightly.review import advise, gained_device_hours, review
from tools.scenario import Scenario

MAX_NEW_NIGHTS = 60
"""Nights read at once when a history begins or was interrupted."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NightContext:
    """What all workloads of a run share."""

    database: Database
    tenant: str
    base: Path
    """The folder that patterns and scenario files are relative to."""
    uploads: Uploads
    reoptimizer: Reoptimizer | None
    run_id: str | None = None
    clock: Callable[[], float] = time.time
    roots: Sequence[Path] | None = None
    """Where paths of the server may lead; None anywhere, for who runs nights on their own machine."""
    check: Callable[[], None] | None = None
    """Raises, while traces are read, if this worker may not go on."""


@dataclass(frozen=True)
class IngestedNight:
    """The newest night, and the diagnosis of its profile."""

    night: Night
    source: NightSource
    diagnosis: NightDiagnosis | None
    is_new: bool
    reported_until: float
    """Time of the last night before this run."""
    notes: list[str]


def run_night(
    context: NightContext,
    policy: Policy,
    title: str,
    planned_at: float | None = None,
    on_workload: Callable[[NightResult], None] | None = None,
) -> NightReport:
    """Calls `on_workload` after each workload; it may raise to end the run."""
    results = []
    for workload in policy.workloads:
        result = run_workload(context, workload, policy)
        results.append(result)
        if on_workload:
            on_workload(result)
    return report_of(results, title, planned_at or context.clock(), context.run_id, __version__, time.time())


def run_workload(context: NightContext, workload: WatchedWorkload, policy: Policy) -> NightResult:
    """Never raises for what is wrong with the workload: its result says so, and the others still run."""
    with context.database.read() as conn:
        row = find_workload(conn, context.tenant, workload.name)
    before = row.outcome if row else None
    if row and context.run_id and row.run_id == context.run_id:
        return row.outcome  # done by an earlier attempt of this run
    try:
        result = _review(context, workload, policy, before)
    except HandBackError:
        raise
    except Exception as error:
        if is_outage(error):
            raise
        reason = str(error)
        if not isinstance(error, AsapError):
            _log.exception("workload %s failed", workload.name)
            reason = f"unexpected {type(error).__name__}: {error}"
        hours = workload.hours_per_day
        known = before or NightResult(name=workload.name, status=BROKEN, hours_per_day=hours)
        result = known.broken(reason, hours)
    _store(context, result)
    return result


def _store(context: NightContext, result: NightResult) -> None:
    row = WorkloadRow(
        tenant=context.tenant,
        name=result.name,
        status=result.status,
        reason=result.reason,
        wasted_device_hours_per_day=result.wasted_device_hours_per_day,
        updated_at=context.clock(),
        run_id=context.run_id,
        session_id=result.proposal.session_id if result.proposal else None,
        outcome=result,
    )
    with context.database.begin() as conn:
        set_workload(conn, row)


def _review(
    context: NightContext, workload: WatchedWorkload, policy: Policy, before: NightResult | None
) -> NightResult:
    described = load_scenario(workload, context.base)
    try:
        parse_request(described)
    except InputError as error:
        raise error.at(f"scenario.{error.path}") from None
    ingested = _ingest(context, workload, described, before)
    night, is_new, hours = ingested.night, ingested.is_new, workload.hours_per_day
    with context.database.read() as conn:
        nights = list_nights(conn, context.tenant, workload.name)
    reported_until = ingested.reported_until if is_new else None
    reviewed = review(nights, hours, policy.least_change, reported_until=reported_until)
    today = with_job_plan(described, night.environment.plan)
    is_alarm, plans = is_new and reviewed.is_regression, PlanUpdate()
    if policy.reoptimize and context.reoptimizer:
        reference = ingested.source.reference
        request = {**policy.request(today), **({"traces": reference} if reference else {})}
        plans = update_proposal(
            context.reoptimizer, workload.name, request, before, policy.gain, is_alarm, context.clock()
        )
    speedup = plans.proposal.speedup if plans.proposal else None
    lost = reviewed.lost_device_hours_per_day
    gained = gained_device_hours(reviewed.nights[-1].num_devices, speedup or 1.0, hours)
    scenario = parse_request(today).scenario
    if is_new:
        _calibrate(context, workload, scenario, night)
    day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(night.at))
    stale = f"nothing new since {day} UTC ({night.source}): does the job still run and profile?"
    return NightResult(
        name=workload.name,
        status=reviewed.status if is_new else STALE,
        reason=None if is_new else stale,
        model=scenario.model.name or None,
        device=scenario.cluster.device,
        num_devices=scenario.cluster.num_devices,
        hours_per_day=hours,
        night=summary_of_night(night),
        num_nights=len(reviewed.nights),
        num_other_nights=reviewed.num_others,
        is_alarm=is_alarm,
        findings=reviewed.findings,
        attribution=reviewed.attribution,
        sensitivity=reviewed.sensitivity,
        bisection=reviewed.bisection,
        diagnosis=ingested.diagnosis,
        advice=advise(reviewed),
        lost_device_hours_per_day=lost,
        best=plans.best,
        asked=plans.asked,
        proposal=plans.proposal,
        reoptimized=plans.reoptimized,
        gained_device_hours_per_day=gained,
        wasted_device_hours_per_day=max(lost, gained),
        trend=trend_of(reviewed),
        notes=[*ingested.notes, *night.notes, *prediction_warnings(plans.best, night.step_time_s)],
    )


def _calibrate(context: NightContext, workload: WatchedWorkload, scenario: Scenario, night: Night) -> None:
    """A night of a named cluster calibrates its predictions."""
    if scenario.cluster.name and scenario.plan is not None and night.step_time_s:
        measured, id = Measured(step_time_s=night.step_time_s), f"{workload.name} {night.key}"[:200]
        run = Run(scenario=scenario, measured=measured, id=id, source="nightly")
        with context.database.begin() as conn:
            add_runs(conn, context.tenant, [run], f"night of {workload.name}"[:200])


def _ingest(
    context: NightContext, workload: WatchedWorkload, described: StatedWorkload, before: NightResult | None
) -> IngestedNight:
    """Records every night since the last reported one; the newest must be readable, others get a note."""
    last = before.night if before else None
    with context.database.read() as conn:
        known = list_nights(conn, context.tenant, workload.name, limit=1)
        sources = find_uploads(conn, context.tenant, workload, context.uploads) if workload.uploads else []
    sources = sources or find_sources(workload, context.base, context.clock(), context.roots)
    last_s = last.at if last and known else float("-inf")
    fresh = [source for source in sources if source.at > last_s][-MAX_NEW_NIGHTS:]
    if not fresh:
        diagnosis = before.diagnosis if before else None
        return IngestedNight(known[0], sources[-1], diagnosis, False, last_s, [])
    notes = []
    for source in fresh[:-1]:
        try:
            _record(context, workload, described, source)
        except AsapError as error:
            notes.append(f"an earlier night was left out: {error}")
    night, diagnosis = _record(context, workload, described, fresh[-1])
    is_new = not last or night.key != last.key
    return IngestedNight(night, fresh[-1], diagnosis, is_new, last_s, notes)


def _record(
    context: NightContext, workload: WatchedWorkload, described: StatedWorkload, source: NightSource
) -> tuple[Night, NightDiagnosis | None]:
    diagnosis = None
    if source.is_metrics:
        night = read_metrics_night(described, source.path)
    else:
        night, analysis = read_profile_night(described, source.path, context.check)
        found = analysis.report.diagnosis
        diagnosis = NightDiagnosis.model_validate(found.model_dump()) if found else None
    with context.database.begin() as conn:
        add_night(conn, context.tenant, workload.name, night)
    return night, diagnosis
