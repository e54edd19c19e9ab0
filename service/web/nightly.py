"""/fleet and /schedules: workloads by wasted time, the schedules and their nights."""

from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Query, Request, Response
from markupsafe import Markup

from service.api.deps import AppDep, Id, Reader
from service.api.runs import Name, public_run
from service.api.schedules import SchedulePublic, public_schedule
from service.auth import Caller
from service.db.schedules import find_workload, workload_names
from service.errors import NotFoundError
from service.nightly.fleet import Fleet, FleetWorkload, fleet_of
from service.nightly.report import html_overview, html_workload
from service.render.nightly import STATUS, hours
from service.render.text import seconds, seconds_span
from service.web.forms import add_buttons
from service.web.rendering import PageRoute, page

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
        return f"step time over {len(values)} nights, from {seconds_span(values[0], values[-1])}"


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

router = APIRouter(route_class=PageRoute)
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
