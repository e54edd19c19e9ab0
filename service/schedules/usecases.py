"""Use cases of schedules (add, list, pause, resume, remove, run now, their runs) and the fleet: all watched
workloads of a tenant in one table.

The API and the pages call these; nothing here knows about HTTP.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import sqlalchemy as sa

from graph.request import parse_request
from service.access.auth import Caller
from service.access.store import record
from service.addresses import origin_of, parse_target
from service.db.engine import Database
from service.db.queries import lock_tenant
from service.errors import ConflictError, NotFoundError, QuotaError
from service.logs import request_id
from service.runtime import check_tune
from service.schedules import store as db
from service.schedules.calendar import ScheduleSpec, check_schedule, naming_scenario, parse_cron
from service.schedules.config import parse
from service.schedules.dispatch import NightQueue, database_clock, run_now
from service.schedules.model import ACTIVE, UNWATCHED, RunRow, Schedule, ScheduleRow, WorkloadRow, schedules
from service.sessions.model import WAITING, labels, sessions
from service.settings import Settings
from service.traces.uploads import check_server_path
from tools.errors import InputError
from tools.nightly.result import NightReport, NightResult, OpenProposal

LABEL = "workload"
"""The label of sessions that a night started, with the workload's name."""
HIDDEN = ("webhooks", "slack")
"""Recipients whose addresses may hold a token."""


@dataclass(frozen=True)
class FleetWorkload:
    """One row of the fleet's table."""

    row: WorkloadRow
    waiting_session_id: str | None
    """A session that waits for an approval."""

    @property
    def result(self) -> NightResult:
        return self.row.outcome

    @property
    def proposal(self) -> OpenProposal | None:
        return self.result.proposal if self.row.status != UNWATCHED else None


@dataclass(frozen=True)
class Fleet:
    workloads: Sequence[FleetWorkload]
    approvals_waiting: int

    @property
    def wasted_device_hours_per_day(self) -> float:
        return sum(workload.row.wasted_device_hours_per_day for workload in self.workloads)

    @property
    def open_proposals(self) -> int:
        return sum(workload.proposal is not None for workload in self.workloads)


def fleet_of(conn: sa.Connection, tenant: str) -> Fleet:
    """Every watched workload, with the newest session about it that waits for a person."""
    query = (
        sa.select(labels.c.value, sessions.c.id)
        .join(sessions, sessions.c.id == labels.c.session_id)
        .where(labels.c.tenant == tenant, labels.c.name == LABEL, sessions.c.state == WAITING)
        .order_by(sessions.c.id)
    )
    waits = [(row.value, row.id) for row in conn.execute(query)]
    waiting = dict(waits)
    lines = [FleetWorkload(row, waiting.get(row.name)) for row in db.list_workloads(conn, tenant)]
    return Fleet(lines, len(waits))


@dataclass(frozen=True)
class Schedules:
    settings: Settings
    database: Database
    queue: NightQueue

    def add(self, caller: Caller, spec: ScheduleSpec) -> Schedule:
        """Runs from now on. Raises InputError for what could not run here or what the caller may not name."""
        check_schedule(spec, may_tune=self.settings.launch_templates is not None)
        for place, workload in enumerate(spec.workloads):
            field, described = f"workloads[{place}]", workload.scenario
            assert isinstance(described, dict)  # a schedule refuses names of files
            with naming_scenario(field):
                # Whether it could be measured here, before a night finds out that it cannot.
                check_tune(self.settings, parse_request(spec.request(described)))
            for name in ("traces", "metrics"):
                if pattern := getattr(workload, name):
                    check_server_path(self.settings, caller, f"{field}.{name}", pattern)
            if (traces := described.get("traces")) is not None:
                allowed = "must be absent: the run fills it in with the newest profile"
                raise InputError(f"{field}.scenario.traces", traces, allowed)
        self._check_recipients(spec)
        with self.database.begin() as conn:
            lock_tenant(conn, caller.tenant)
            most, count = self.settings.tenant_schedules, sa.select(sa.func.count())
            kept = conn.scalar(count.where(schedules.c.tenant == caller.tenant)) or 0
            if kept >= most and not caller.is_local:
                raise QuotaError(f"this tenant has {most} schedules, the maximum; delete some")
            row = db.create_schedule(conn, caller.tenant, caller.name, spec, database_clock(conn))
            _record(conn, caller, "schedule.add", row)
            return _with_state(conn, [row])[0]

    def _check_recipients(self, spec: ScheduleSpec) -> None:
        settings, recipients = self.settings, spec.recipients
        if recipients.webhooks and settings.webhook_secret is None:
            allowed = "this installation sends none: it has no ASAP_WEBHOOK_SECRET to sign with"
            raise InputError("recipients.webhooks", "an address", allowed)
        if recipients.emails and (settings.smtp_host is None or settings.smtp_from is None):
            allowed = "this installation sends no mail: it has no ASAP_SMTP_HOST and ASAP_SMTP_FROM"
            raise InputError("recipients.emails", recipients.emails[0], allowed)
        for name in HIDDEN:
            for url in getattr(recipients, name):
                try:
                    parse_target(url, settings.webhook_private)
                except InputError as error:
                    raise InputError(f"recipients.{name}", "an address", error.rule) from None

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
            about = (caller.tenant, caller.name, "schedule.run", run.schedule_id, request_id.get())
            record(conn, *about, run=run.id)
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
            raise ConflictError(f"run {run.id} is {run.state}; it has no report", path="state")
        return run.report

    def list_workloads(self, caller: Caller) -> list[WorkloadRow]:
        """The most wasteful first."""
        with self.database.read() as conn:
            return db.list_workloads(conn, caller.tenant)

    def get_workload(self, caller: Caller, name: str) -> WorkloadRow:
        with self.database.read() as conn:
            row = db.find_workload(conn, caller.tenant, name)
        if row is None:
            raise NotFoundError("workload", name)
        return row

    def forget_workload(self, caller: Caller, name: str) -> None:
        """With its nights; a schedule that still has it begins its history anew."""
        with self.database.begin() as conn:
            db.forget_workload(conn, caller.tenant, name)
            record(conn, caller.tenant, caller.name, "workload.forget", name, request_id.get())

    def fleet(self, caller: Caller) -> Fleet:
        with self.database.read() as conn:
            return fleet_of(conn, caller.tenant)


def _with_state(conn: sa.Connection, rows: Sequence[ScheduleRow]) -> list[Schedule]:
    """With the last run and the next planned time; of addresses only the host."""
    runs, now_s = db.last_runs(conn, [row.id for row in rows]), database_clock(conn)
    schedules = []
    for row in rows:
        next_at = None
        # A schedule stored by an older release may be one that this one cannot parse.
        with suppress(InputError):
            spec = parse(ScheduleSpec, row.definition)
            next_at = parse_cron(spec.cron, spec.zone).next_after(now_s) if row.state == ACTIVE else None
        stated = row.definition.get("recipients")
        recipients = dict(stated) if isinstance(stated, dict) else {}
        for name in HIDDEN:
            urls = recipients.get(name)
            recipients[name] = [origin_of(str(url)) for url in urls] if isinstance(urls, list) else []
        schedules.append(
            Schedule(
                **row.model_dump(
                    include={"id", "name", "owner", "state", "reason", "created_at", "updated_at"}
                ),
                cron=str(row.definition.get("cron", "")),
                zone=str(row.definition.get("zone", "")),
                next_at=next_at,
                last_run=runs.get(row.id),
                definition={**row.definition, "recipients": recipients},
            )
        )
    return schedules


def _record(conn: sa.Connection, caller: Caller, action: str, row: ScheduleRow) -> None:
    record(conn, caller.tenant, caller.name, action, row.id, request_id.get(), name=row.name)
