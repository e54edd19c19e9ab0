"""/fleet and /schedules: workloads by wasted time, schedules, their nights, and the form of a new one."""

import re
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from urllib.parse import quote

from fastapi import APIRouter, Query, Response
from fastapi.responses import RedirectResponse

from service.errors import ConflictError
from service.http.deps import Id
from service.jobs.model import COMPLETED
from service.render.nightly import STATUS, causes, day, hours, sentence
from service.render.text import seconds
from service.schedules.api import ScheduleCreate, WorkloadName
from service.schedules.config import SOURCES, parse
from service.schedules.model import UNWATCHED
from service.schedules.report import html_overview, html_workload
from service.schedules.usecases import FleetWorkload, Schedules
from service.sessions.pages.listing import SessionLine
from service.sessions.store import SessionFilter, list_sessions
from service.sessions.usecases import Sessions
from service.strict_json import JsonObject, parse_object
from service.web.errors import PageRoute
from service.web.forms import CheckedForm, FormFields, add_buttons, text_of
from service.web.rendering import Page, ReaderPage, SubmitterPage
from tools.errors import InputError
from tools.nightly.findings import STEP_TIME
from tools.nightly.result import STALE

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
EMPTY_FORM = {"time": "05:30", "zone": "UTC", "reoptimize": "yes"}
OUTCOMES = {
    "quiet": "nothing new",
    "regression": "got slower",
    "slower": "still slower",
    "broken": "not read",
}
DAYS_PER_WEEK = 7
HEAT_NIGHTS = 35
HEAT = (0.02, 0.035, 0.05, 0.1)
"""How much slower than its level a night is at the least, for each colour."""
ALARMING = ("regressed", "slower", "broken", "stale")
RUNS = 40
HERE = "/schedules/{id}"
PageCursor = Annotated[str | None, Query(max_length=64)]

router = APIRouter(route_class=PageRoute)
add_buttons(
    router,
    HERE,
    {
        "pause": (lambda app, caller, id: app.get(Schedules).pause(caller, id), HERE),
        "resume": (lambda app, caller, id: app.get(Schedules).resume(caller, id), HERE),
        "run": (lambda app, caller, id: app.get(Schedules).run(caller, id), HERE),
        "remove": (lambda app, caller, id: app.get(Schedules).remove(caller, id), "/schedules"),
    },
)


@router.get("/schedules/new")
def show_form(page: SubmitterPage) -> Response:
    return _form(page, EMPTY_FORM, None)


@router.post("/schedules/new")
def add_schedule(form: CheckedForm, page: SubmitterPage) -> Response:
    try:
        schedule = page.app.get(Schedules).add(page.caller, read_form(page, form))
    except (InputError, ConflictError) as error:
        return _form(page, form, error, 422)
    return RedirectResponse(HERE.format(id=schedule.id), 303)


def read_form(page: Page, form: FormFields) -> ScheduleCreate:
    """Raises InputError that names a field of the form."""
    if text := text_of(form, "definition"):
        return parse(ScheduleCreate, parse_object(text.encode(), "definition"))
    days, cron = form.get("days", "every"), form.get("cron", "")
    if days not in DAYS:
        raise InputError("days", days, f"allowed: {', '.join(DAYS)}")
    if days != "cron":
        clock = CLOCK.fullmatch(form.get("time", ""))
        if clock is None:
            raise InputError("time", form.get("time", ""), "allowed: hours and minutes, for example 05:30")
        cron = f"{int(clock[2])} {int(clock[1])} * * {DAYS[days][1]}"
    workloads = []
    for row in _rows({name: value for name, value in form.items() if value}):
        at = f"workloads[{row}]."
        source = form.get(f"{at}source", SOURCES[-1])
        if source not in SOURCES:
            raise InputError(f"{at}source", source, f"allowed: {', '.join(SOURCES)}")
        hours_per_day = text_of(form, f"{at}hours_per_day")
        workloads.append(
            {
                "name": form.get(f"{at}name", ""),
                "scenario": _scenario(page, form, at),
                source: form.get(f"{at}pattern", ""),
                **({"hours_per_day": hours_per_day} if hours_per_day else {}),
            }
        )
    addresses = {name: re.split(r"[\s,]+", form.get(f"recipients.{name}", "")) for name in ADDRESSES}
    recipients = {name: [piece for piece in pieces if piece] for name, pieces in addresses.items()}
    return parse(
        ScheduleCreate,
        {
            "name": form.get("name", ""),
            "cron": cron,
            **{name: text for name in ("zone", "mode", "approval") if (text := text_of(form, name))},
            "workloads": workloads,
            "recipients": {**recipients, "when": form.get("recipients.when") or "always"},
            "reoptimize": form.get("reoptimize") == "yes",
        },
    )


def _scenario(page: Page, form: FormFields, at: str) -> JsonObject:
    """What was pasted, or what a session was about."""
    field = f"{at}scenario"
    if text := text_of(form, field):
        return parse_object(text.encode(), field)
    if session := text_of(form, f"{at}session"):
        known = page.app.get(Sessions).get(page.caller, session, report=False).request or {}
        return {name: known[name] for name in PARTS if known.get(name)}
    raise InputError(field, "nothing", "choose a session with today's plan, or paste a scenario")


def _rows(form: FormFields) -> list[int]:
    return sorted({int(match[1]) for name in form if (match := ROW.match(name))}) or [0]


def _form(
    page: Page, values: FormFields, error: InputError | ConflictError | None, status: int = 200
) -> Response:
    with page.app.database.read() as conn:
        recent, _ = list_sessions(conn, page.caller.tenant, SessionFilter(state=COMPLETED), limit=RECENT)
    return page(
        "new_schedule",
        status,
        values=values,
        rows=_rows(values),
        wrong=error,
        days={key: name for key, (name, _) in DAYS.items()},
        sources=SOURCES,
        sessions=[SessionLine(row) for row in recent],
        can_mail=page.app.settings.smtp_host is not None,
        may_read_folders=page.caller.may("operator"),
    )


@dataclass(frozen=True)
class WorkloadView:
    """One line of the fleet's table in words."""

    workload: FleetWorkload

    @property
    def devices(self) -> str:
        result = self.workload.result
        return f"{result.num_devices:,} × {result.device}" if result.num_devices and result.device else ""

    @property
    def status(self) -> str:
        """A night without a new profile takes the place of no regression that stands."""
        status = self.workload.row.status
        return STATUS["slower" if status == STALE and self.story else status]

    @property
    def is_alarming(self) -> bool:
        return self.workload.row.status in ALARMING

    @property
    def step_time(self) -> str:
        night = self.workload.result.night
        return seconds(night.step_time_s) if night else ""

    @property
    def change(self) -> str:
        headline = self.workload.result.headline
        return f"{headline.change_ratio:+.1%}" if headline else ""

    @property
    def lost_per_week(self) -> float:
        """Device-hours; none of a workload that nobody watches any more."""
        result, is_watched = self.workload.result, self.workload.row.status != UNWATCHED
        return result.lost_device_hours_per_week if is_watched else 0.0

    @property
    def lost(self) -> str:
        return hours(self.lost_per_week)

    @property
    def saved(self) -> str:
        """By the open proposal."""
        return hours(DAYS_PER_WEEK * self.workload.result.gained_device_hours_per_day)

    @property
    def story(self) -> list[str]:
        """Since when it is slower, and what changed then; a night without a profile leaves it as it was."""
        result = self.workload.result
        if result.headline is None or not result.headline.is_bad:
            return []
        return [sentence(result.headline), *causes(result)[:2]]

    def heat(self, today: int) -> list["HeatCell"]:
        """A cell per night of the last weeks, by how much slower it was than the level that counts."""
        trend, headline = self.workload.result.trend, self.workload.result.headline
        figure = trend.figures.get(STEP_TIME)
        if figure is None:
            return []
        level = headline.anchor if headline else (figure.levels or figure.values)[-1]
        cells = []
        for night, value in zip(figure.nights, figure.values, strict=True):
            column, ratio = HEAT_NIGHTS - 1 - (today - _day(trend.at[night])), value / level - 1
            kind = "good" if ratio < -HEAT[0] else f"heat{sum(ratio > least for least in HEAT)}"
            if column >= 0:
                cells.append(
                    HeatCell(column, kind, f"{day(trend.at[night])}: {seconds(value)} ({ratio:+.1%})")
                )
        return cells


class HeatCell(NamedTuple):
    column: int
    kind: str
    title: str


def _day(at: float) -> int:
    return int(at // 86_400)


@router.get("/fleet")
def show_fleet(page: ReaderPage) -> Response:
    fleet = page.app.get(Schedules).fleet(page.caller)
    workloads = [WorkloadView(workload) for workload in fleet.workloads]
    lost = hours(sum(each.lost_per_week for each in workloads))
    open_plans = [each.workload.result for each in workloads if each.workload.proposal]
    saved = hours(DAYS_PER_WEEK * sum(result.gained_device_hours_per_day for result in open_plans))
    today = max((_day(at) for each in fleet.workloads for at in each.result.trend.at[-1:]), default=0)
    return page("fleet", fleet=fleet, workloads=workloads, lost=lost, saved=saved, today=today)


@router.get("/fleet/{name}")
def show_workload(name: WorkloadName, page: ReaderPage) -> Response:
    """The nightly report's own page, of the last night's result."""
    row = page.app.get(Schedules).get_workload(page.caller, name)
    main = html_workload(row.outcome, row.updated_at, "Fleet", "/fleet", only_main=True)
    return page("nightly_report", title=name, main=main)


@router.get("/schedules")
def show_schedules(page: ReaderPage) -> Response:
    schedules, _ = page.app.get(Schedules).list_all(page.caller)
    return page("schedules", schedules=schedules, outcomes=OUTCOMES)


@router.get("/schedules/{id}")
def show_schedule(id: Id, page: ReaderPage, cursor: PageCursor = None) -> Response:
    schedules = page.app.get(Schedules)
    schedule = schedules.get(page.caller, id)
    runs, next_cursor = schedules.list_runs(page.caller, schedule.id, cursor, RUNS)
    return page("schedule", schedule=schedule, runs=runs, next_cursor=next_cursor, outcomes=OUTCOMES)


@router.get("/schedules/{id}/runs/{run_id}")
def show_run(id: Id, run_id: Id, page: ReaderPage) -> Response:
    """What a night found."""
    report = page.app.get(Schedules).get_report(page.caller, id, run_id)
    main = html_overview(report, lambda name: f"/fleet/{quote(name)}", only_main=True)
    return page("nightly_report", title=report.title, main=main)
