"""Calls of /v1/schedules and /v1/workloads, for `Client.send` and `AsyncClient.send`."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from asap_client.calls import Body, Call, ReportForm, as_json, as_nothing, as_record, as_text, given, path
from asap_client.models import Data, Record

SCHEDULES, WORKLOADS = "/v1/schedules", "/v1/workloads"


class Run(Record):
    id: str
    schedule_id: str
    planned_at: datetime = Field(description="with the schedule this is the run's identity")
    trigger: str
    state: Literal["queued", "running", "completed", "failed", "skipped"]
    outcome: str | None = Field(description="quiet, regression or broken")
    reason: str | None = Field(description="why it was skipped or failed, or whom it did not reach")
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deliveries: list[Data] | None

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "failed", "skipped")


class RunPage(Record):
    items: list[Run]
    next_cursor: str | None


class Schedule(Record):
    id: str
    name: str
    owner: str
    state: Literal["active", "paused"]
    reason: str | None = Field(description="what keeps it from running as it should")
    cron: str
    zone: str
    next_at: datetime | None = Field(description="the next planned time; null while it is paused")
    last_run: Run | None
    created_at: datetime
    updated_at: datetime
    definition: Data = Field(description="as it was given; of addresses only the host")


class SchedulePage(Record):
    items: list[Schedule]
    next_cursor: str | None


def add_schedule(body: Body) -> Call[Schedule]:
    """Not repeated after a lost answer: the second would find the name taken."""
    return Call("POST", SCHEDULES, as_record(Schedule), json=dict(body), repeatable=False)


def list_schedules(**filters: object) -> Call[SchedulePage]:
    return Call("GET", SCHEDULES, as_record(SchedulePage), params=given(**filters))


def get_schedule(id: str) -> Call[Schedule]:
    return Call("GET", f"{SCHEDULES}/{path(id)}", as_record(Schedule))


def remove_schedule(id: str) -> Call[None]:
    return Call("DELETE", f"{SCHEDULES}/{path(id)}", as_nothing)


def pause_schedule(id: str) -> Call[Schedule]:
    return Call("POST", f"{SCHEDULES}/{path(id)}/pause", as_record(Schedule))


def resume_schedule(id: str) -> Call[Schedule]:
    return Call("POST", f"{SCHEDULES}/{path(id)}/resume", as_record(Schedule))


def run_schedule(id: str) -> Call[Run]:
    """Not repeatable: the second would be another run."""
    return Call("POST", f"{SCHEDULES}/{path(id)}/run", as_record(Run), repeatable=False)


def list_runs(id: str, **filters: object) -> Call[RunPage]:
    return Call("GET", f"{SCHEDULES}/{path(id)}/runs", as_record(RunPage), params=given(**filters))


def get_run(id: str, run_id: str) -> Call[Run]:
    return Call("GET", f"{SCHEDULES}/{path(id)}/runs/{path(run_id)}", as_record(Run))


def run_report(id: str, run_id: str) -> Call[Data]:
    place = f"{SCHEDULES}/{path(id)}/runs/{path(run_id)}/report"
    return Call("GET", place, as_json, headers={"Accept": "application/json"})


def run_report_text(id: str, run_id: str, form: ReportForm) -> Call[str]:
    place = f"{SCHEDULES}/{path(id)}/runs/{path(run_id)}/report"
    return Call("GET", place, as_text, headers={"Accept": form})


def workload_report_text(id: str, run_id: str, name: str, form: ReportForm) -> Call[str]:
    place = f"{SCHEDULES}/{path(id)}/runs/{path(run_id)}/workloads/{path(name)}"
    return Call("GET", place, as_text, headers={"Accept": form})


def list_workloads() -> Call[list[Data]]:
    return Call("GET", WORKLOADS, lambda response: list(response.json()["items"]))


def get_workload(name: str) -> Call[Data]:
    return Call("GET", f"{WORKLOADS}/{path(name)}", as_json)


def forget_workload(name: str) -> Call[None]:
    return Call("DELETE", f"{WORKLOADS}/{path(name)}", as_nothing)
