"""/fleet and /schedules: workloads by wasted time, the schedules and their nights, and the form of a new
schedule.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from markupsafe import Markup

from service.api.deps import AppDep, Id, Reader, Submitter
from service.api.schedules import Name, ScheduleCreate, SchedulePublic, public_run, public_schedule
from service.api.state import AppState
from service.auth import Caller
from service.db.models import COMPLETED
from service.db.schedules import find_workload, workload_names
from service.db.sessions import SessionFilter, list_sessions
from service.errors import ConflictError, NotFoundError
from service.nightly.config import SOURCES, parse
from service.nightly.report import html_overview, html_workload
from service.nightly.schedules import Fleet, FleetWorkload, fleet_of
from service.render.nightly import STATUS, hours
from service.render.text import counted, seconds, seconds_span
from service.strict_json import JsonObject, parse_object
from service.web.forms import CheckedForm, Form, add_buttons, text_of
from service.web.rendering import PageRoute, page
from service.web.sessions import Line
from tools.errors import InputError

CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
ROW = re.compile(r"workloads\[(\d{1,3})\]\.")
DAYS = {
    "every": ("every day", "*"),
    "weekdays": ("Monday to Friday", "1-5"),
    "cron": ("a cron expression", ""),
}
PARTS = ("model", "cluster", "training", "plan", "constraints")
ADDRESSES = ("emails", "slack", "webhooks")
RECENT = 60

FindScenario = Callable[[str], JsonObject]


def definition_of(form: Form, find_scenario: FindScenario) -> JsonObject:
    """Raises InputError that names a field of the form; what may be wrong in itself the API's schema says."""
    if text := text_of(form, "definition"):
        return parse_object(text.encode(), "definition")
    rows = sorted({int(match[1]) for name in form if (match := ROW.match(name)) and form[name]})
    stated = {name: text for name in ("zone", "mode", "approval") if (text := text_of(form, name))}
    return {
        "name": form.get("name", ""),
        "cron": _cron(form),
        **stated,
        "workloads": [_workload(form, f"workloads[{row}].", find_scenario) for row in rows or [0]],
        "recipients": _recipients(form),
        "reoptimize": form.get("reoptimize") == "yes",
    }


def _cron(form: Form) -> str:
    days = form.get("days", "every")
    if days not in DAYS:
        raise InputError("days", days, f"allowed: {', '.join(DAYS)}")
    if days == "cron":
        return form.get("cron", "")
    clock = CLOCK.fullmatch(form.get("time", ""))
    if clock is None:
        raise InputError("time", form.get("time", ""), "allowed: hours and minutes, for example 05:30")
    return f"{int(clock[2])} {int(clock[1])} * * {DAYS[days][1]}"


def _workload(form: Form, prefix: str, find_scenario: FindScenario) -> JsonObject:
    source, hours = form.get(f"{prefix}source", SOURCES[-1]), text_of(form, f"{prefix}hours_per_day")
    if source not in SOURCES:
        raise InputError(f"{prefix}source", source, f"allowed: {', '.join(SOURCES)}")
    workload: JsonObject = {
        "name": form.get(f"{prefix}name", ""),
        "scenario": _scenario(form, prefix, find_scenario),
        source: form.get(f"{prefix}pattern", ""),
    }
    return {**workload, "hours_per_day": _hours(f"{prefix}hours_per_day", hours)} if hours else workload


def _hours(field: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(field, text, "must be a number of hours per day, at most 24") from None


def _scenario(form: Form, prefix: str, find_scenario: FindScenario) -> JsonObject:
    """What was pasted, or what a session was about."""
    field = f"{prefix}scenario"
    if text := text_of(form, field):
        return parse_object(text.encode(), field)
    if session := text_of(form, f"{prefix}session"):
        return find_scenario(session)
    raise InputError(field, "nothing", "choose a session with today's plan, or paste a scenario")


def _recipients(form: Form) -> JsonObject:
    addresses = {
        name: [piece for piece in re.split(r"[\s,]+", form.get(f"recipients.{name}", "")) if piece]
        for name in ADDRESSES
    }
    return {**addresses, "when": form.get("recipients.when") or "always"}


router = APIRouter(route_class=PageRoute)


@router.get("/schedules/new")
def show_form(request: Request, app: AppDep, caller: Submitter) -> Response:
    values = {"time": "05:30", "zone": "UTC", "reoptimize": "yes"}
    return _form(request, app, caller, values, None)


@router.post("/schedules/new")
def add_schedule(request: Request, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
    def find_scenario(id: str) -> JsonObject:
        known = app.sessions.get(caller, id, report=False).request or {}
        return {name: known[name] for name in PARTS if known.get(name)}

    try:
        spec = parse(ScheduleCreate, definition_of(form, find_scenario))
        schedule = app.schedules.add(caller, spec)
    except (InputError, ConflictError) as error:
        return _form(request, app, caller, form, error, 422)
    return RedirectResponse(f"/schedules/{schedule.row.id}", 303)


def _form(
    request: Request,
    app: AppState,
    caller: Caller,
    values: Form,
    error: InputError | ConflictError | None,
    status: int = 200,
) -> Response:
    with app.database.read() as conn:
        recent, _ = list_sessions(conn, caller.tenant, SessionFilter(state=COMPLETED), limit=RECENT)
    rows = sorted({int(match[1]) for name in values if (match := ROW.match(name))}) or [0]
    return page(
        request,
        "new_schedule",
        caller,
        status,
        values=values,
        rows=rows,
        wrong=error,
        days={key: name for key, (name, _) in DAYS.items()},
        sources=SOURCES,
        sessions=[Line(row) for row in recent],
        can_mail=app.settings.smtp_host is not None,
        may_read_folders=caller.may("operator"),
    )


OUTCOMES = {
    "quiet": "nothing new",
    "regression": "got slower",
    "slower": "still slower",
    "broken": "not read",
}
DAYS_PER_WEEK = 7
ALARMING = ("regressed", "slower", "broken", "stale")


@dataclass(frozen=True)
class WorkloadView:
    workload: FleetWorkload

    @property
    def devices(self) -> str:
        workload = self.workload
        has_cluster = workload.num_devices and workload.device
        return f"{workload.num_devices:,} × {workload.device}" if has_cluster else ""

    @property
    def status(self) -> str:
        return STATUS[self.workload.status]

    @property
    def step_time(self) -> str:
        return seconds(self.workload.step_time_s) if self.workload.step_time_s else ""

    @property
    def change(self) -> str:
        ratio = self.workload.change_ratio
        return "" if ratio is None else f"{ratio:+.1%}"

    @property
    def wasted(self) -> str:
        return hours(DAYS_PER_WEEK * self.workload.wasted_device_hours_per_day)

    @property
    def is_alarming(self) -> bool:
        return self.workload.status in ALARMING

    @property
    def trend(self) -> str:
        """The sparkline in words."""
        values = self.workload.spark_values
        if not values:
            return "no nights yet"
        return f"step time over {counted(len(values), 'night')}, from {seconds_span(values[0], values[-1])}"


@dataclass(frozen=True)
class FleetView:
    fleet: Fleet

    @property
    def workloads(self) -> list[WorkloadView]:
        return [WorkloadView(workload) for workload in self.fleet.workloads]

    @property
    def wasted(self) -> str:
        return hours(DAYS_PER_WEEK * self.fleet.wasted_device_hours_per_day)


@dataclass(frozen=True)
class ScheduleView:
    public: SchedulePublic

    @property
    def workloads(self) -> list[str]:
        return workload_names(self.public.definition)

    @property
    def is_active(self) -> bool:
        return self.public.state == "active"


RUNS = 40
HERE = "/schedules/{id}"

add_buttons(
    router,
    HERE,
    {
        "pause": (lambda app, caller, id: app.schedules.pause(caller, id), HERE),
        "resume": (lambda app, caller, id: app.schedules.resume(caller, id), HERE),
        "run": (lambda app, caller, id: app.schedules.run(caller, id), HERE),
        "remove": (lambda app, caller, id: app.schedules.remove(caller, id), "/schedules"),
    },
)

Text = Annotated[str | None, Query(max_length=64)]


@router.get("/fleet")
def show_fleet(request: Request, app: AppDep, caller: Reader) -> Response:
    with app.database.read() as conn:
        fleet = fleet_of(conn, caller.tenant)
    return page(request, "fleet", caller, view=FleetView(fleet))


@router.get("/fleet/{name}")
def show_workload(name: Name, request: Request, app: AppDep, caller: Reader) -> Response:
    """The nightly report's own page, of the last night's result."""
    with app.database.read() as conn:
        row = find_workload(conn, caller.tenant, name)
    if row is None:
        raise NotFoundError("workload", name)
    return _report(request, caller, name, html_workload(row.outcome, row.updated_at, "Fleet", "/fleet"))


@router.get("/schedules")
def show_schedules(request: Request, app: AppDep, caller: Reader) -> Response:
    schedules, _ = app.schedules.list_all(caller)
    return page(
        request,
        "schedules",
        caller,
        lines=[ScheduleView(public_schedule(item)) for item in schedules],
        outcomes=OUTCOMES,
    )


@router.get("/schedules/{id}")
def show_schedule(id: Id, request: Request, app: AppDep, caller: Reader, cursor: Text = None) -> Response:
    schedule = ScheduleView(public_schedule(app.schedules.get(caller, id)))
    rows, next_cursor = app.schedules.list_runs(caller, schedule.public.id, cursor, RUNS)
    runs = [public_run(row) for row in rows]
    return page(
        request, "schedule", caller, schedule=schedule, runs=runs, next_cursor=next_cursor, outcomes=OUTCOMES
    )


@router.get("/schedules/{id}/runs/{run_id}")
def show_run(id: Id, run_id: Id, request: Request, app: AppDep, caller: Reader) -> Response:
    """What a night found."""
    report = app.schedules.get_report(caller, id, run_id)
    document = html_overview(report, lambda name: f"/fleet/{quote(name)}")
    return _report(request, caller, report.title, document)


def _report(request: Request, caller: Caller, title: str, document: str) -> Response:
    """What a document of the nightly report says, in the frame of the other pages."""
    main = document.partition("<main")[2].partition(">")[2].rpartition("</main>")[0]
    return page(request, "nightly_report", caller, title=title, main=Markup(main))
