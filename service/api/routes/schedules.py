"""/v1/schedules: nightly runs by the clock. What they found is in schedule_runs.py."""

from contextlib import closing

import sqlalchemy as sa
from fastapi import APIRouter, Response

from graph.request import parse_request
from service.api.dependencies import Cursor, Id, Limit, PartsOf, Reader, Submitter, get_request_id
from service.api.parts import Parts
from service.api.schemas.schedules import (
    PATH,
    RunPublic,
    ScheduleCreate,
    SchedulePage,
    SchedulePublic,
    public_run,
    public_schedule,
)
from service.api.strict_route import StrictRoute
from service.auth.caller import Caller
from service.nightly.schedules.queue import NightQueue
from service.nightly.schedules.spec import ScheduleSpec, check_schedule, placed
from service.nightly.schedules.ticking import database_clock, run_now
from service.store.audit import record
from service.store.night_runs import find_last_run
from service.store.schedules import (
    ScheduleRow,
    create_schedule,
    delete_schedule,
    get_schedule,
    list_schedules,
    pause,
    resume,
)
from service.trials import check_tune
from service.work.addresses import parse_target
from tools.errors import InputError

router = APIRouter(prefix=PATH, tags=["schedules"], route_class=StrictRoute)


@router.post("", status_code=201, summary="Register workloads to be looked at by the clock")
def add(given: ScheduleCreate, parts: PartsOf, caller: Submitter, response: Response) -> SchedulePublic:
    """`traces` and `metrics` are paths of the server and need the scope admin; `uploads` need none."""
    check_schedule(given, may_tune=parts.settings.launch_templates is not None)
    _check_trials(given, parts)
    _check_sources(given, caller)
    _check_recipients(given, parts)
    definition = given.model_dump(mode="json", by_alias=True)
    with parts.database.begin() as conn:
        row = create_schedule(conn, caller.tenant, caller.name, given.name, definition, database_clock(conn))
        _record(conn, caller, "schedule.add", row)
        response.headers["Location"] = f"{PATH}/{row.id}"
        return _public(conn, row)


@router.get("", summary="List schedules, newest first")
def list_all(parts: PartsOf, caller: Reader, cursor: Cursor = None, limit: Limit = 100) -> SchedulePage:
    with parts.database.read() as conn:
        rows, following = list_schedules(conn, caller.tenant, cursor, limit)
        return SchedulePage(items=[_public(conn, row) for row in rows], next_cursor=following)


@router.get("/{id}", summary="One schedule, by id or name")
def get_one(id: Id, parts: PartsOf, caller: Reader) -> SchedulePublic:
    with parts.database.read() as conn:
        return _public(conn, get_schedule(conn, caller.tenant, id))


@router.delete("/{id}", status_code=204, summary="Remove a schedule and its runs")
def remove(id: Id, parts: PartsOf, caller: Submitter) -> None:
    """The history of its workloads stays."""
    with closing(NightQueue(parts.database)) as queue:
        with parts.database.begin() as conn:
            row, runs = delete_schedule(conn, caller.tenant, id)
            _record(conn, caller, "schedule.remove", row)
        queue.forget(runs)


@router.post("/{id}/pause", summary="Run no more nights")
def pause_one(id: Id, parts: PartsOf, caller: Submitter) -> SchedulePublic:
    with parts.database.begin() as conn:
        row = pause(conn, caller.tenant, id)
        _record(conn, caller, "schedule.pause", row)
        return _public(conn, row)


@router.post("/{id}/resume", summary="Run nights again, from now on")
def resume_one(id: Id, parts: PartsOf, caller: Submitter) -> SchedulePublic:
    with parts.database.begin() as conn:
        row = resume(conn, caller.tenant, id, database_clock(conn))
        _record(conn, caller, "schedule.resume", row)
        return _public(conn, row)


@router.post("/{id}/run", status_code=202, summary="Run it now, whatever the clock says")
def run_once(id: Id, parts: PartsOf, caller: Submitter) -> RunPublic:
    with closing(NightQueue(parts.database)) as queue, parts.database.begin() as conn:
        run = run_now(conn, queue, caller.tenant, id)
        record(
            conn, caller.tenant, caller.name, "schedule.run", run.schedule_id, get_request_id(), run=run.id
        )
        return public_run(run)


def _public(conn: sa.Connection, row: ScheduleRow) -> SchedulePublic:
    return public_schedule(row, find_last_run(conn, row.id), database_clock(conn))


def _record(conn: sa.Connection, caller: Caller, action: str, row: ScheduleRow) -> None:
    record(conn, caller.tenant, caller.name, action, row.id, get_request_id(), name=row.name)


def _check_sources(given: ScheduleSpec, caller: Caller) -> None:
    for place, workload in enumerate(given.workloads):
        for name in ("traces", "metrics"):
            pattern = getattr(workload, name)
            if pattern is not None and not caller.may("admin"):
                allowed = "give uploads; a path of the server needs the scope admin"
                raise InputError(f"workloads[{place}].{name}", pattern, allowed)
        described = workload.scenario if isinstance(workload.scenario, dict) else {}
        if described.get("traces") is not None:
            allowed = "must be absent: the run fills it in with the newest profile"
            raise InputError(f"workloads[{place}].scenario.traces", described["traces"], allowed)


def _check_trials(given: ScheduleSpec, parts: Parts) -> None:
    """Whether each workload could be measured here, before a night finds out that it cannot."""
    for place, workload in enumerate(given.workloads):
        described = workload.scenario if isinstance(workload.scenario, dict) else {}
        try:
            check_tune(parts.settings, parse_request(given.request(described)))
        except InputError as error:
            raise placed(error, f"workloads[{place}]") from None


def _check_recipients(given: ScheduleSpec, parts: Parts) -> None:
    settings, recipients = parts.settings, given.recipients
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
