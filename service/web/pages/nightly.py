"""/fleet: workloads by what they waste, and the last night of each. /schedules: when, and what it found."""

import json
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from service.api.dependencies import Id, PartsOf, Reader, Submitter
from service.api.routes import schedule_runs, schedules
from service.api.schemas.schedules import ScheduleCreate
from service.auth.caller import Caller
from service.cli.strict_json import parse_object
from service.errors import ConflictError, NotFoundError
from service.nightly.definition import parse
from service.nightly.fleet import fleet_of
from service.nightly.report.html import content_security_policy, html_workload
from service.store.nights import find_workload
from service.web.buttons import add_buttons
from service.web.error_pages import PageRoute
from service.web.forms import CheckedForm
from service.web.rendering import page
from service.web.views.nightly import FleetView, ScheduleView
from tools.errors import InputError

RUNS = 40
HERE = "/schedules/{id}"

router = APIRouter(route_class=PageRoute)
add_buttons(
    router,
    HERE,
    {
        "pause": (schedules.pause_one, HERE),
        "resume": (schedules.resume_one, HERE),
        "run": (schedules.run_once, HERE),
        "remove": (schedules.remove, "/schedules"),
    },
)

Text = Annotated[str | None, Query(max_length=64)]


@router.get("/fleet")
def show_fleet(request: Request, parts: PartsOf, caller: Reader) -> Response:
    with parts.database.read() as conn:
        fleet = fleet_of(conn, caller.tenant)
    return page(request, "fleet", caller, view=FleetView(fleet))


@router.get("/fleet/{name}")
def show_workload(name: schedule_runs.Name, parts: PartsOf, caller: Reader) -> Response:
    """The nightly report's own page, of what the last night said."""
    with parts.database.read() as conn:
        row = find_workload(conn, caller.tenant, name)
    if row is None:
        raise NotFoundError("workload", name)
    text = html_workload({"at": row.updated_at, "title": "Fleet"}, row.outcome, "/fleet")
    return HTMLResponse(text, headers={"Content-Security-Policy": content_security_policy()})


@router.get("/schedules")
def show_schedules(request: Request, parts: PartsOf, caller: Reader) -> Response:
    found = schedules.list_all(parts, caller)
    return page(request, "schedules", caller, lines=[ScheduleView(one) for one in found.items])


@router.get("/schedules/new")
def show_form(request: Request, parts: PartsOf, caller: Submitter) -> Response:
    example = _example(can_mail=parts.settings.smtp_host is not None)
    return _form(request, caller, json.dumps(example, indent=2), None)


@router.post("/schedules/new")
def add(request: Request, form: CheckedForm, parts: PartsOf, caller: Submitter) -> Response:
    text = form.get("definition", "")
    try:
        given = parse(ScheduleCreate, parse_object(text.encode(), "definition"))
        made = schedules.add(given, parts, caller, Response())
    except (InputError, ConflictError) as error:
        return _form(request, caller, text, str(error), 422)
    return RedirectResponse(f"/schedules/{made.id}", 303)


@router.get("/schedules/{id}")
def show_one(id: Id, request: Request, parts: PartsOf, caller: Reader, cursor: Text = None) -> Response:
    schedule = ScheduleView(schedules.get_one(id, parts, caller))
    runs = schedule_runs.list_all(schedule.public.id, parts, caller, cursor, RUNS)
    return page(request, "schedule", caller, one=schedule, runs=runs.items, next_cursor=runs.next_cursor)


def _form(request: Request, caller: Caller, text: str, wrong: str | None, status: int = 200) -> Response:
    return page(request, "new_schedule", caller, status, text=text, wrong=wrong)


def _example(*, can_mail: bool) -> object:
    """What the API's description shows, as this installation would take it."""
    extra = ScheduleCreate.model_config.get("json_schema_extra")
    examples = extra.get("examples") if isinstance(extra, dict) else None
    example = examples[0] if isinstance(examples, list) and isinstance(examples[0], dict) else {}
    return {name: part for name, part in example.items() if can_mail or name != "recipients"}
