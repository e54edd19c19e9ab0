"""/schedules/new: the form of a schedule and its conversion to the body of POST /v1/schedules."""

import re
from collections.abc import Callable

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from service.api.deps import AppDep, Submitter
from service.api.schedules import ScheduleCreate
from service.api.state import AppState
from service.auth import Caller
from service.db.models import COMPLETED
from service.db.sessions import SessionFilter, get_session, list_sessions
from service.errors import ConflictError
from service.nightly.config import SOURCES, parse
from service.strict_json import JsonObject, parse_object
from service.web.forms import CheckedForm, Form, text_of
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
def show(request: Request, app: AppDep, caller: Submitter) -> Response:
    values = {"time": "05:30", "zone": "UTC", "reoptimize": "yes"}
    return _form(request, app, caller, values, None)


@router.post("/schedules/new")
def add(request: Request, form: CheckedForm, app: AppDep, caller: Submitter) -> Response:
    def find_scenario(id: str) -> JsonObject:
        with app.database.read() as conn:
            known = get_session(conn, caller.tenant, id, report=False).request or {}
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
