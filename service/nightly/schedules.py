"""Use cases of schedules (add, list, pause, resume, remove, run now, their runs) and the fleet: all watched
workloads of a tenant in one table.

The API and the pages call these; nothing here knows about HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from graph.request import parse_request
from service.addresses import parse_target
from service.auth import Caller
from service.db import schedules as db
from service.db.access import record
from service.db.engine import Database
from service.db.models import WAITING, labels, sessions
from service.db.schedules import ACTIVE, UNWATCHED, RunRow, ScheduleRow, WorkloadRow, list_workloads
from service.errors import ConflictError, NotFoundError
from service.logs import request_id
from service.nightly.config import parse
from service.nightly.dispatch import NightQueue, database_clock, run_now
from service.nightly.schedule import ScheduleSpec, check_schedule, parse_cron, qualify_field
from service.render.trends import spark_points
from service.runtime import check_tune
from service.settings import Settings
from service.uploads import check_server_path
from tools.errors import InputError
from tools.nightly.result import NightReport, OpenProposal

SPARK_NIGHTS = 30
LABEL = "workload"
"""The label of sessions that a night started, with the workload's name."""


@dataclass(frozen=True)
class FleetWorkload:
    """One row of the fleet's table."""

    name: str
    status: str
    reason: str | None
    model: str | None
    device: str | None
    num_devices: int | None
    step_time_s: float | None
    change_ratio: float | None
    """Of the step time, if it changed."""
    wasted_device_hours_per_day: float
    lost_device_hours_per_day: float
    gained_device_hours_per_day: float
    spark: str
    """Points of an SVG polyline in a frame of 100 by 24; empty without nights."""
    spark_values: Sequence[float]
    proposal: OpenProposal | None
    waiting_session_id: str | None
    """A session that waits for an approval."""
    updated_at: float
    run_id: str | None


@dataclass(frozen=True)
class Fleet:
    workloads: Sequence[FleetWorkload]
    wasted_device_hours_per_day: float
    open_proposals: int
    approvals_waiting: int


def fleet_of(conn: sa.Connection, tenant: str) -> Fleet:
    waits = waiting_sessions(conn, tenant)
    waiting = dict(waits)
    lines = [_fleet_workload(row, waiting.get(row.name)) for row in list_workloads(conn, tenant)]
    return Fleet(
        workloads=lines,
        wasted_device_hours_per_day=sum(line.wasted_device_hours_per_day for line in lines),
        open_proposals=sum(line.proposal is not None for line in lines),
        approvals_waiting=len(waits),
    )


def waiting_sessions(conn: sa.Connection, tenant: str) -> list[tuple[str, str]]:
    """Workload and id of every session that waits for a person, the newest last."""
    query = (
        sa.select(labels.c.value, sessions.c.id)
        .join(sessions, sessions.c.id == labels.c.session_id)
        .where(labels.c.tenant == tenant, labels.c.name == LABEL, sessions.c.state == WAITING)
        .order_by(sessions.c.id)
    )
    return [(row.value, row.id) for row in conn.execute(query)]


def _fleet_workload(row: WorkloadRow, waiting: str | None) -> FleetWorkload:
    result = row.outcome
    values = result.step_times_s[-SPARK_NIGHTS:]
    return FleetWorkload(
        name=row.name,
        status=row.status,
        reason=row.reason,
        model=result.model,
        device=result.device,
        num_devices=result.num_devices,
        step_time_s=result.night.step_time_s if result.night else None,
        change_ratio=result.headline.change_ratio if result.headline else None,
        wasted_device_hours_per_day=row.wasted_device_hours_per_day,
        lost_device_hours_per_day=result.lost_device_hours_per_day,
        gained_device_hours_per_day=result.gained_device_hours_per_day,
        spark=spark_points(values) if values else "",
        spark_values=values,
        proposal=result.proposal if row.status != UNWATCHED else None,
        waiting_session_id=waiting,
        updated_at=row.updated_at,
        run_id=row.run_id,
    )


@dataclass(frozen=True)
class Schedule:
    row: ScheduleRow
    last_run: RunRow | None
    next_at: float | None
    """The next planned time; None while it is paused."""


@dataclass(frozen=True)
class Schedules:
    settings: Settings
    database: Database
    queue: NightQueue

    def add(self, caller: Caller, spec: ScheduleSpec) -> Schedule:
        """Runs from now on. Raises InputError for what could not run here or what the caller may not name."""
        check_schedule(spec, may_tune=self.settings.launch_templates is not None)
        self._check_trials(spec)
        _check_sources(self.settings, spec, caller)
        self._check_recipients(spec)
        definition = spec.model_dump(mode="json", by_alias=True)
        with self.database.begin() as conn:
            now_s = database_clock(conn)
            row = db.create_schedule(conn, caller.tenant, caller.name, spec.name, definition, now_s)
            _record(conn, caller, "schedule.add", row)
            return _with_state(conn, [row])[0]

    def list_all(
        self, caller: Caller, cursor: str | None = None, limit: int = 100
    ) -> tuple[list[Schedule], str | None]:
        """Newest first."""
        with self.database.read() as conn:
            rows, next_cursor = db.list_schedules(conn, caller.tenant, cursor, limit)
            return _with_state(conn, rows), next_cursor

    def get(self, caller: Caller, id: str) -> Schedule:
        with self.database.read() as conn:
            return _with_state(conn, [db.get_schedule(conn, caller.tenant, id)])[0]

    def remove(self, caller: Caller, id: str) -> None:
        """With its runs; the history of its workloads stays."""
        with self.database.begin() as conn:
            row, runs = db.delete_schedule(conn, caller.tenant, id)
            _record(conn, caller, "schedule.remove", row)
        self.queue.forget(runs)

    def pause(self, caller: Caller, id: str) -> Schedule:
        with self.database.begin() as conn:
            row = db.pause(conn, caller.tenant, id)
            _record(conn, caller, "schedule.pause", row)
            return _with_state(conn, [row])[0]

    def resume(self, caller: Caller, id: str) -> Schedule:
        with self.database.begin() as conn:
            row = db.resume(conn, caller.tenant, id, database_clock(conn))
            _record(conn, caller, "schedule.resume", row)
            return _with_state(conn, [row])[0]

    def run(self, caller: Caller, id: str) -> RunRow:
        """Now, whatever the clock says."""
        with self.database.begin() as conn:
            run = run_now(conn, self.queue, caller.tenant, id)
            details = {"run": run.id}
            record(
                conn, caller.tenant, caller.name, "schedule.run", run.schedule_id, request_id.get(), **details
            )
            return run

    def list_runs(
        self, caller: Caller, id: str, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[RunRow], str | None]:
        """Newest first; those that were skipped too, with the reason."""
        with self.database.read() as conn:
            schedule = db.get_schedule(conn, caller.tenant, id)
            return db.list_runs(conn, caller.tenant, schedule.id, cursor, limit)

    def get_run(self, caller: Caller, id: str, run_id: str) -> RunRow:
        with self.database.read() as conn:
            schedule, run = db.get_schedule(conn, caller.tenant, id), db.get_run(conn, caller.tenant, run_id)
        if run.schedule_id != schedule.id:
            raise NotFoundError("run", run_id)
        return run

    def get_report(self, caller: Caller, id: str, run_id: str) -> NightReport:
        run = self.get_run(caller, id, run_id)
        if run.report is None:
            raise ConflictError(f"run {run.id} is {run.state}; it has no report", field="state")
        return run.report

    def _check_trials(self, spec: ScheduleSpec) -> None:
        """Whether each workload could be measured here, before a night finds out that it cannot."""
        for place, workload in enumerate(spec.workloads):
            described = workload.scenario if isinstance(workload.scenario, dict) else {}
            try:
                check_tune(self.settings, parse_request(spec.request(described)))
            except InputError as error:
                raise qualify_field(error, f"workloads[{place}]") from None

    def _check_recipients(self, spec: ScheduleSpec) -> None:
        settings, recipients = self.settings, spec.recipients
        if recipients.webhooks and settings.webhook_secret is None:
            allowed = "this installation sends none: it has no ASAP_WEBHOOK_SECRET to sign with"
            raise InputError("recipients.webhooks", "an address", allowed)
        if recipients.emails and (settings.smtp_host is None or settings.smtp_from is None):
            allowed = "this installation sends no mail: it has no ASAP_SMTP_HOST and ASAP_SMTP_FROM"
            raise InputError("recipients.emails", recipients.emails[0], allowed)
        for name in ("webhooks", "slack"):
            for url in getattr(recipients, name):
                try:
                    parse_target(url, settings.webhook_private)
                except InputError as error:
                    raise InputError(f"recipients.{name}", "an address", error.allowed) from None


def _check_sources(settings: Settings, spec: ScheduleSpec, caller: Caller) -> None:
    for place, workload in enumerate(spec.workloads):
        for name in ("traces", "metrics"):
            pattern = getattr(workload, name)
            if pattern is not None:
                check_server_path(settings, caller, f"workloads[{place}].{name}", pattern)
        if isinstance(workload.scenario, str):
            check_server_path(settings, caller, f"workloads[{place}].scenario", workload.scenario)
        described = workload.scenario if isinstance(workload.scenario, dict) else {}
        if described.get("traces") is not None:
            allowed = "must be absent: the run fills it in with the newest profile"
            raise InputError(f"workloads[{place}].scenario.traces", described["traces"], allowed)


def _with_state(conn: sa.Connection, rows: Sequence[ScheduleRow]) -> list[Schedule]:
    runs, now_s = db.last_runs(conn, [row.id for row in rows]), database_clock(conn)
    return [Schedule(row, runs.get(row.id), _next_at(row, now_s)) for row in rows]


def _next_at(row: ScheduleRow, now_s: float) -> float | None:
    """A schedule stored by an older release may be one that this one cannot parse."""
    if row.state != ACTIVE:
        return None
    try:
        spec = parse(ScheduleSpec, row.definition)
        return parse_cron(spec.cron, spec.zone).next_after(now_s)
    except InputError:
        return None


def _record(conn: sa.Connection, caller: Caller, action: str, row: ScheduleRow) -> None:
    record(conn, caller.tenant, caller.name, action, row.id, request_id.get(), name=row.name)
