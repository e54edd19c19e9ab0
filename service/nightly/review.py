"""One night: the newest profiles or metrics of each workload found, read, compared with the nights before,
diagnosed and re-optimized; then the report.
"""

import glob
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import sqlalchemy as sa

from graph.request import parse_request
from service import __version__
from service.db.engine import Database, is_outage
from service.db.models import traces
from service.db.schedules import WorkloadRow, add_night, find_workload, list_nights, set_workload
from service.db.traces import COMPLETE
from service.errors import HandBackError
from service.measurements import add_runs
from service.nightly.config import Policy, Workload, load_scenario
from service.nightly.reoptimize import PlanUpdate, Reoptimizer, prediction_warnings, update_proposal
from service.uploads import REFERENCE, Uploads, is_below
from tools.calibrate.runs import Measured, Run
from tools.errors import AsapError, InputError
from tools.nightly.night import Described, Night, with_job_plan
from tools.nightly.read import profile_time, read_metrics_night, read_profile_night
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
from tools.nightly.review import Review, advise, gained_device_hours, review
from tools.scenario import Scenario
from tools.trace.report import TraceReport

SETTLED_S = 60.0
"""A profile written to more recently may still be incomplete."""
MAX_MATCHES = 100_000


@dataclass(frozen=True)
class Source:
    path: Path
    at: float
    """When its last file was written."""
    is_metrics: bool = False
    reference: str | None = None
    """How a session's request names it; None for metrics, which no session reads."""


def find_sources(
    workload: Workload, base: Path, now_s: float | None = None, roots: Sequence[Path] | None = None
) -> list[Source]:
    """Folders and files, oldest first. Raises InputError if the pattern matches nothing that can be read.

    With `roots`, what leads elsewhere, by a link too, is as if it were not there.
    """
    field = "metrics" if workload.metrics else "traces"
    pattern, to_source = str(getattr(workload, field)), _metrics if workload.metrics else _profile
    matches = glob.glob(pattern, root_dir=base, recursive=True)[:MAX_MATCHES]
    if roots is not None:
        matches = [path for path in matches if is_below(roots, base / path)]
    if not matches:
        where = " below ASAP_TRACE_ROOTS" if roots is not None else ""
        raise InputError(field, pattern, f"matches nothing{where}; is the pattern right?")
    sources = [source for path in matches if (source := to_source(base / path))]
    if not sources:
        what = "no file" if workload.metrics else "no folder with *.json, *.json.gz, *.sqlite or *.xplane.pb"
        raise InputError(field, pattern, f"{what} is among its {len(matches)} matches")
    return _only_settled(sources, field, pattern, now_s)


def find_uploads(conn: sa.Connection, tenant: str, workload: Workload, uploads: Uploads) -> list[Source]:
    """The tenant's complete uploads whose name matches, in the order in which they were completed."""
    query = sa.select(traces.c.id, traces.c.name, traces.c.completed_at).where(
        traces.c.tenant == tenant, traces.c.state == COMPLETE
    )
    rows = conn.execute(query.order_by(traces.c.completed_at, traces.c.id)).all()
    pattern = str(workload.uploads)
    matches = [row for row in rows if fnmatchcase(row.name, pattern)]
    if not matches:
        raise InputError("uploads", pattern, f"matches the name of none of {len(rows)} complete uploads")
    return [
        Source(uploads.folder(row.id), row.completed_at, reference=f"{REFERENCE}{row.id}") for row in matches
    ]


def _profile(path: Path) -> Source | None:
    """None if it is no folder of profiles."""
    if not path.is_dir():
        return None
    try:
        return Source(path, profile_time(path), reference=str(path.absolute()))
    except (InputError, OSError):
        return None


def _metrics(path: Path) -> Source | None:
    try:
        return Source(path, path.stat().st_mtime, is_metrics=True) if path.is_file() else None
    except OSError:
        return None


def _only_settled(sources: list[Source], field: str, pattern: str, now_s: float | None) -> list[Source]:
    now_s = time.time() if now_s is None else now_s
    settled = [source for source in sources if now_s - source.at >= SETTLED_S]
    if not settled:
        raise InputError(
            field, pattern, f"was written to in the last {SETTLED_S:.0f} s; it may be incomplete"
        )
    return sorted(settled, key=lambda source: (source.at, source.path))


@dataclass(frozen=True)
class WorkloadCheck:
    """The newest profile, or the reason why there is none."""

    name: str
    newest: str | None = None
    step_time_s: float | None = None
    reason: str | None = None


def check_workload(workload: Workload, base: Path) -> WorkloadCheck:
    try:
        described = load_scenario(workload, base)
        parse_request(described)
        newest = _find_newest(workload, base)
        if workload.metrics:
            night = read_metrics_night(described, newest)
        else:
            night, _ = read_profile_night(described, newest)
    except AsapError as error:
        return WorkloadCheck(workload.name, reason=str(error))
    return WorkloadCheck(workload.name, str(newest), night.step_time_s)


def _find_newest(workload: Workload, base: Path) -> Path:
    if workload.uploads:
        raise InputError(
            "uploads", workload.uploads, "allowed in schedules of 'asap serve'; here give traces"
        )
    return find_sources(workload, base)[-1].path


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
    source: Source
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


def run_workload(context: NightContext, workload: Workload, policy: Policy) -> NightResult:
    """Never raises for what is wrong with the workload: its result says so, and the others still run."""
    with context.database.read() as conn:
        row = find_workload(conn, context.tenant, workload.name)
    before = row.outcome if row else None
    if row and context.run_id and row.run_id == context.run_id:
        return row.outcome  # done by an earlier attempt of this run
    try:
        result = _run(context, workload, policy, before)
    except AsapError as error:
        result = _broken(workload, str(error), before)
    except HandBackError:
        raise
    except Exception as error:
        if is_outage(error):
            raise
        _log.exception("workload %s failed", workload.name)
        result = _broken(workload, f"unexpected {type(error).__name__}: {error}", before)
    _store(context, result)
    return result


def _broken(workload: Workload, reason: str, before: NightResult | None) -> NightResult:
    known = before or NightResult(name=workload.name, status=BROKEN, hours_per_day=workload.hours_per_day)
    return known.broken(reason, workload.hours_per_day)


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


def _run(
    context: NightContext, workload: Workload, policy: Policy, before: NightResult | None
) -> NightResult:
    described = load_scenario(workload, context.base)
    _check_scenario(described)
    ingested = _ingest(context, workload, described, before)
    with context.database.read() as conn:
        nights = list_nights(conn, context.tenant, workload.name)
    reported_until = ingested.reported_until if ingested.is_new else None
    reviewed = review(nights, workload.hours_per_day, policy.least_change, reported_until=reported_until)
    night = ingested.night
    today = with_job_plan(described, night.environment.plan)
    plans = _update_plans(context, workload, policy, before, today, ingested, reviewed)
    speedup = plans.proposal.speedup if plans.proposal else None
    lost = reviewed.lost_device_hours_per_day
    gained = gained_device_hours(reviewed.nights[-1].num_devices, speedup or 1.0, workload.hours_per_day)
    scenario = parse_request(today).scenario
    if ingested.is_new:
        _keep_measurement(context, workload, scenario, night)
    return NightResult(
        name=workload.name,
        status=reviewed.status if ingested.is_new else STALE,
        reason=None if ingested.is_new else _stale_reason(night),
        model=scenario.model.name or None,
        device=scenario.cluster.device,
        num_devices=scenario.cluster.num_devices,
        hours_per_day=workload.hours_per_day,
        night=summary_of_night(night),
        num_nights=len(reviewed.nights),
        num_other_nights=reviewed.num_others,
        is_alarm=ingested.is_new and reviewed.is_regression,
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


def _keep_measurement(context: NightContext, workload: Workload, scenario: Scenario, night: Night) -> None:
    """A night of a named cluster calibrates its predictions."""
    if not scenario.cluster.name or scenario.plan is None or not night.step_time_s:
        return
    what = Measured(step_time_s=night.step_time_s)
    run = Run(scenario, what, id=f"{workload.name} {night.key}"[:200], source="nightly")
    with context.database.begin() as conn:
        add_runs(conn, context.tenant, [run], f"night of {workload.name}"[:200])


def _check_scenario(described: Described) -> None:
    try:
        parse_request(described)
    except InputError as error:
        raise InputError(f"scenario.{error.field}", error.given, error.allowed) from None


def _stale_reason(night: Night) -> str:
    day = time.strftime("%Y-%m-%d %H:%M", time.gmtime(night.at))
    return f"nothing new since {day} UTC ({night.source}): does the job still run and profile?"


def _ingest(
    context: NightContext, workload: Workload, described: Described, before: NightResult | None
) -> IngestedNight:
    """Records every night since the last reported one; the newest must be readable, others get a note."""
    last = before.night if before else None
    with context.database.read() as conn:
        known = list_nights(conn, context.tenant, workload.name, limit=1)
        uploaded = find_uploads(conn, context.tenant, workload, context.uploads) if workload.uploads else None
    sources = (
        find_sources(workload, context.base, context.clock(), context.roots) if uploaded is None else uploaded
    )
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
    context: NightContext, workload: Workload, described: Described, source: Source
) -> tuple[Night, NightDiagnosis | None]:
    diagnosis = None
    if source.is_metrics:
        night = read_metrics_night(described, source.path)
    else:
        night, analysis = read_profile_night(described, source.path, context.check)
        diagnosis = _diagnosis(analysis.report)
    with context.database.begin() as conn:
        add_night(conn, context.tenant, workload.name, night)
    return night, diagnosis


def _diagnosis(report: TraceReport) -> NightDiagnosis | None:
    diagnosis = report.diagnosis
    return None if diagnosis is None else NightDiagnosis.model_validate(diagnosis.model_dump())


def _update_plans(
    context: NightContext,
    workload: Workload,
    policy: Policy,
    before: NightResult | None,
    today: Described,
    ingested: IngestedNight,
    reviewed: Review,
) -> PlanUpdate:
    if not policy.reoptimize or context.reoptimizer is None:
        return PlanUpdate()
    request = policy.request(today)
    if ingested.source.reference:
        request = {**request, "traces": ingested.source.reference}
    is_slower = ingested.is_new and reviewed.is_regression
    return update_proposal(
        context.reoptimizer, workload.name, request, before, policy.gain, is_slower, context.clock()
    )
