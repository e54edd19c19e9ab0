"""A schedule's definition: cron expression, time zone, blackouts, workloads. Imports no database."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from itertools import takewhile
from typing import Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from pydantic import Field, field_validator, model_validator

from graph.request import SessionOptions, parse_request
from service.schedules.config import NAME, Policy, Strict, check_modes, parse
from tools.errors import InputError

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}
FIELDS = "five fields: minute, hour, day of the month, month, day of the week; for instance '30 5 * * *'"
MAX_CHARACTERS = 200
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CLOCK = r"^([01]\d|2[0-3]):[0-5]\d$"
MAX_BLACKOUTS = 100


@dataclass(frozen=True)
class Cron:
    """Made by `parse_cron`, which checks both fields."""

    expression: str
    zone: str

    def times(self, after_s: float) -> Iterator[float]:
        """The planned times after this moment, in order; the same from any starting point."""
        last = after_s
        start = datetime.fromtimestamp(after_s, UTC).astimezone(ZoneInfo(self.zone))
        for moment in CronSim(ALIASES.get(self.expression, self.expression), start):
            planned = moment.timestamp()
            # Inside the hour that a change of clocks repeats, CronSim may go back to its first half.
            if planned > last:
                last = planned
                yield planned

    def between(self, after_s: float, until_s: float) -> Iterator[float]:
        return takewhile(lambda planned: planned <= until_s, self.times(after_s))

    def next_after(self, moment_s: float) -> float | None:
        """None if no such day ever comes."""
        return next(self.times(moment_s), None)


def parse_cron(expression: str, zone: str) -> Cron:
    """Raises InputError that names the field."""
    fields = ALIASES.get(expression, expression).split()
    if len(expression) > MAX_CHARACTERS or len(fields) != 5:
        raise InputError("cron", expression, f"must have {FIELDS}")
    check_zone(zone)
    try:
        cron = Cron(expression, zone)
        never = cron.next_after(0.0) is None
    except CronSimError as error:
        raise InputError("cron", expression, f"{error}; must have {FIELDS}") from None
    if never:
        raise InputError("cron", expression, "that day never comes")
    return cron


def check_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, UnicodeError):
        allowed = "must be a zone of the IANA database, for instance Europe/Berlin or UTC"
        raise InputError("zone", name, allowed) from None


class Blackout(Strict):
    """A time in which no run starts: from one moment to another, or every week from hour to hour."""

    start: datetime | None = Field(
        None, description="local time of the schedule's zone unless it has its own"
    )
    end: datetime | None = None
    days: list[Day] = Field([], description="on which it begins; every day if empty")
    from_time: str | None = Field(None, alias="from", pattern=CLOCK, examples=["22:00"])
    to_time: str | None = Field(None, alias="to", pattern=CLOCK, description="the next day, if not later")
    reason: str | None = Field(None, max_length=200)

    @model_validator(mode="after")
    def _either_once_or_weekly(self) -> "Blackout":
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
                bound if bound.tzinfo else bound.replace(tzinfo=local.tzinfo)
                for bound in (self.start, self.end)
            )
            return start.timestamp() <= moment_s < end.timestamp()
        start_time, end_time = (time.fromisoformat(str(bound)) for bound in (self.from_time, self.to_time))
        clock, evening, morning = local.time(), self._on(local), self._on(local - timedelta(days=1))
        if start_time < end_time:
            return start_time <= clock < end_time and evening
        return (clock >= start_time and evening) or (clock < end_time and morning)

    def _on(self, local: datetime) -> bool:
        return not self.days or DAYS[local.weekday()] in self.days

    @property
    def description(self) -> str:
        if self.start and self.end:
            when = f"{self.start:%Y-%m-%d %H:%M} to {self.end:%Y-%m-%d %H:%M}"
        else:
            days = f" on {', '.join(self.days)}" if self.days else ""
            when = f"{self.from_time} to {self.to_time}{days}"
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
        "once", description="a night for which no worker was available: caught up once, or skipped"
    )
    overlap: Literal["skip", "wait"] = Field(
        "skip", description="a night whose predecessor still runs: skipped, or run after it"
    )
    blackouts: list[Blackout] = Field([], max_length=MAX_BLACKOUTS)
    jitter_s: float = Field(
        0.0, ge=0, le=6 * 3600, description="delay each start by up to this many seconds, to spread the load"
    )

    @field_validator("cron", mode="before")
    @classmethod
    def _single_spaces(cls, value: object) -> object:
        return " ".join(value.split()) if isinstance(value, str) else value

    @property
    def clock(self) -> Cron:
        return parse_cron(self.cron, self.zone)

    def blackout_at(self, moment_s: float) -> Blackout | None:
        return next((blackout for blackout in self.blackouts if blackout.covers(moment_s, self.zone)), None)


def parse_schedule(definition: object, *, may_tune: bool) -> ScheduleSpec:
    """Raises InputError for the first fault, in a workload's scenario too."""
    spec = parse(ScheduleSpec, definition)
    check_schedule(spec, may_tune=may_tune)
    return spec


def check_schedule(spec: ScheduleSpec, *, may_tune: bool) -> None:
    """What the types alone do not check."""
    parse_cron(spec.cron, spec.zone)
    check_modes(spec, may_tune=may_tune, may_wait=True)
    for index, workload in enumerate(spec.workloads):
        field = f"workloads[{index}]"
        for name in ("traces", "metrics"):
            pattern = getattr(workload, name)
            if pattern is not None and not pattern.startswith("/"):
                raise InputError(f"{field}.{name}", pattern, "must begin at the server's root: /...")
        if not isinstance(workload.scenario, dict):
            raise InputError(f"{field}.scenario", workload.scenario, "must be the scenario itself")
        with naming_scenario(field):
            parse_request(spec.request(workload.scenario))


@contextmanager
def naming_scenario(workload: str) -> Iterator[None]:
    """Options of sessions are the schedule's own; what else is wrong is in the workload's scenario."""
    try:
        yield
    except InputError as error:
        is_option = error.path.partition(".")[0] in SessionOptions.model_fields
        raise error.at(error.path if is_option else f"{workload}.scenario.{error.path}") from None
