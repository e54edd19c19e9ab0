"""What a schedule may ask for: a nightly run, when, and what to do when that cannot be."""

from collections.abc import Mapping
from datetime import UTC, datetime, time, timedelta
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from graph.request import OPTIONS, parse_request
from service.nightly.definition import NAME, Policy, Strict, Workload, check_modes, parse
from service.nightly.schedules.cron import Cron, check_zone, parse_cron
from tools.errors import InputError

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CLOCK = r"^([01]\d|2[0-3]):[0-5]\d$"
MOST_BLACKOUTS = 100


class Blackout(Strict):
    """A time in which nothing is started: from one moment to another, or every week from hour to hour."""

    start: datetime | None = Field(
        None, description="local time of the schedule's zone unless it has its own"
    )
    end: datetime | None = None
    days: list[Day] = Field([], description="on which it begins; every day if empty")
    from_time: str | None = Field(None, alias="from", pattern=CLOCK, examples=["22:00"])
    to_time: str | None = Field(None, alias="to", pattern=CLOCK, description="the next day, if not later")
    reason: str | None = Field(None, max_length=200)

    @model_validator(mode="after")
    def _one_way(self) -> "Blackout":
        once, weekly = (self.start, self.end), (self.from_time, self.to_time)
        if not (all(once) and not any(weekly)) and not (all(weekly) and not any(once)):
            raise ValueError("give start and end, or from and to")
        if self.start and self.end and _naive(self.end) <= _naive(self.start):
            raise ValueError("must end after it starts")
        return self

    def covers(self, moment_s: float, zone: str) -> bool:
        local = datetime.fromtimestamp(moment_s, UTC).astimezone(check_zone(zone))
        if self.start and self.end:
            start, end = (
                one if one.tzinfo else one.replace(tzinfo=local.tzinfo) for one in (self.start, self.end)
            )
            return start.timestamp() <= moment_s < end.timestamp()
        return self._covers_weekly(local)

    def _covers_weekly(self, local: datetime) -> bool:
        start, end = (time.fromisoformat(str(one)) for one in (self.from_time, self.to_time))
        clock = local.time()
        if start < end:
            return start <= clock < end and self._on(local)
        return (clock >= start and self._on(local)) or (clock < end and self._on(local - timedelta(days=1)))

    def _on(self, local: datetime) -> bool:
        return not self.days or DAYS[local.weekday()] in self.days

    @property
    def told(self) -> str:
        if self.start and self.end:
            when = f"{self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M}"
        else:
            when = f"{self.from_time} to {self.to_time}" + (
                f" on {', '.join(self.days)}" if self.days else ""
            )
        return f"{when} ({self.reason})" if self.reason else when


def _naive(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


class ScheduleSpec(Policy):
    """The body of POST /v1/schedules."""

    name: str = Field(pattern=NAME)
    cron: str = Field(
        description="five fields, or @daily; times are those of the zone", examples=["30 5 * * *"]
    )
    zone: str = Field("UTC", max_length=64, examples=["Europe/Berlin"])
    missed: Literal["once", "skip"] = Field(
        "once", description="a night that no worker was there for: caught up once, or left out"
    )
    overlap: Literal["skip", "wait"] = Field(
        "skip", description="a night whose predecessor still runs: left out, or run after it"
    )
    blackouts: list[Blackout] = Field([], max_length=MOST_BLACKOUTS)
    jitter_s: float = Field(
        0.0, ge=0, le=6 * 3600, description="start up to so much later, by the night, to spread the load"
    )

    @field_validator("cron", mode="before")
    @classmethod
    def _squeezed(cls, given: object) -> object:
        return " ".join(given.split()) if isinstance(given, str) else given

    @property
    def clock(self) -> Cron:
        return parse_cron(self.cron, self.zone)

    def blackout_at(self, moment_s: float) -> Blackout | None:
        return next((one for one in self.blackouts if one.covers(moment_s, self.zone)), None)


def parse_schedule(given: Mapping[str, Any], *, may_tune: bool) -> ScheduleSpec:
    """Raises InputError for the first thing that is wrong, in a workload's scenario too."""
    spec = parse(ScheduleSpec, given)
    check_schedule(spec, may_tune=may_tune)
    return spec


def check_schedule(spec: ScheduleSpec, *, may_tune: bool) -> None:
    """What the shape alone does not tell."""
    parse_cron(spec.cron, spec.zone)
    check_modes(spec, may_tune=may_tune, may_wait=True)
    for place, workload in enumerate(spec.workloads):
        _check_workload(spec, workload, f"workloads[{place}]")


def _check_workload(spec: ScheduleSpec, workload: Workload, field: str) -> None:
    for name in ("traces", "metrics"):
        pattern = getattr(workload, name)
        if pattern is not None and not pattern.startswith("/"):
            raise InputError(f"{field}.{name}", pattern, "must begin at the server's root: /...")
    if not isinstance(workload.scenario, dict):
        raise InputError(f"{field}.scenario", workload.scenario, "must be the scenario itself")
    try:
        parse_request(spec.request(workload.scenario))
    except InputError as error:
        raise placed(error, field) from None


def placed(error: InputError, workload: str) -> InputError:
    """Options of sessions are the schedule's own; all else is the workload's."""
    place = "" if error.field.partition(".")[0] in OPTIONS else f"{workload}.scenario."
    return InputError(f"{place}{error.field}", error.given, error.allowed)
