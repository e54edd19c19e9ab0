"""Calls of /v1/schedules and /v1/workloads, for `Client.send` and `AsyncClient.send`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from asap_client.calls import Body, Call, ReportForm, as_json, as_nothing, as_record, as_text, path, stated
from asap_client.models import JsonObject, Record

SCHEDULES, WORKLOADS = "/v1/schedules", "/v1/workloads"


@dataclass(frozen=True, kw_only=True)
class Run(Record):
    id: str
    schedule_id: str
    planned_at: datetime
    """Identifies the run, together with the schedule."""
    trigger: str
    state: Literal["queued", "running", "completed", "failed", "skipped"]
    outcome: str | None
    """quiet, slower, regression or broken."""
    reason: str | None
    """Why it was skipped or failed, or which recipients it did not reach."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    deliveries: list[JsonObject] | None

    @property
    def is_over(self) -> bool:
        return self.state in ("completed", "failed", "skipped")


@dataclass(frozen=True, kw_only=True)
class RunPage(Record):
    items: list[Run]
    next_cursor: str | None


@dataclass(frozen=True, kw_only=True)
class Schedule(Record):
    id: str
    name: str
    owner: str
    state: Literal["active", "paused"]
    reason: str | None
    """What keeps it from running."""
    cron: str
    zone: str
    next_at: datetime | None
    """The next planned time; None while it is paused."""
    last_run: Run | None
    created_at: datetime
    updated_at: datetime
    definition: JsonObject
    """As submitted, but only the host of each address."""


@dataclass(frozen=True, kw_only=True)
class SchedulePage(Record):
    items: list[Schedule]
    next_cursor: str | None


def add_schedule(body: Body) -> Call[Schedule]:
    """Not idempotent: a second attempt would find the name taken."""
    return Call("POST", SCHEDULES, as_record(Schedule), json=dict(body), idempotent=False)


def list_schedules(**filters: object) -> Call[SchedulePage]:
    return Call("GET", SCHEDULES, as_record(SchedulePage), params=stated(**filters))


def get_schedule(id: str) -> Call[Schedule]:
    return Call("GET", f"{SCHEDULES}/{path(id)}", as_record(Schedule))


def remove_schedule(id: str) -> Call[None]:
    return Call("DELETE", f"{SCHEDULES}/{path(id)}", as_nothing)


def pause_schedule(id: str) -> Call[Schedule]:
    return Call("POST", f"{SCHEDULES}/{path(id)}/pause", as_record(Schedule))


def resume_schedule(id: str) -> Call[Schedule]:
    return Call("POST", f"{SCHEDULES}/{path(id)}/resume", as_record(Schedule))


def run_schedule(id: str) -> Call[Run]:
    """Not idempotent: a second attempt would be another run."""
    return Call("POST", f"{SCHEDULES}/{path(id)}/run", as_record(Run), idempotent=False)


def list_runs(id: str, **filters: object) -> Call[RunPage]:
    return Call("GET", f"{SCHEDULES}/{path(id)}/runs", as_record(RunPage), params=stated(**filters))


def get_run(id: str, run_id: str) -> Call[Run]:
    return Call("GET", f"{SCHEDULES}/{path(id)}/runs/{path(run_id)}", as_record(Run))


def run_report(id: str, run_id: str) -> Call[JsonObject]:
    place = f"{SCHEDULES}/{path(id)}/runs/{path(run_id)}/report"
    return Call("GET", place, as_json, headers={"Accept": "application/json"})


def run_report_text(id: str, run_id: str, form: ReportForm) -> Call[str]:
    place = f"{SCHEDULES}/{path(id)}/runs/{path(run_id)}/report"
    return Call("GET", place, as_text, headers={"Accept": form})


def workload_report_text(id: str, run_id: str, name: str, form: ReportForm) -> Call[str]:
    place = f"{SCHEDULES}/{path(id)}/runs/{path(run_id)}/workloads/{path(name)}"
    return Call("GET", place, as_text, headers={"Accept": form})


def list_workloads() -> Call[list[JsonObject]]:
    return Call("GET", WORKLOADS, lambda response: list(response.json()["items"]))


def get_workload(name: str) -> Call[JsonObject]:
    return Call("GET", f"{WORKLOADS}/{path(name)}", as_json)


def forget_workload(name: str) -> Call[None]:
    return Call("DELETE", f"{WORKLOADS}/{path(name)}", as_nothing)
