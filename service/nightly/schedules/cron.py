"""Cron expressions in a time zone, as Debian's cron reads them (cronsim).

When clocks go forward, a time that does not exist runs when the gap is over; when they go back, a fixed time
runs once. Times are seconds since 1970, so that the identity of a night does not depend on its zone's rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tools.errors import InputError

ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}
FIELDS = "five fields: minute, hour, day of the month, month, day of the week; for instance '30 5 * * *'"
MOST_CHARACTERS = 200


@dataclass(frozen=True)
class Cron:
    """Made by `parse_cron`, which has checked both."""

    expression: str
    zone: str

    @cached_property
    def _zone(self) -> ZoneInfo:
        return ZoneInfo(self.zone)

    def times(self, after_s: float) -> Iterator[float]:
        """The planned times after this moment, in order; the same ones from wherever one begins."""
        last = after_s
        for moment in self._simulated(after_s):
            planned = moment.timestamp()
            # From inside the hour that comes twice, cron's own rule leads back into its first half.
            if planned > last:
                last = planned
                yield planned

    def _simulated(self, after_s: float) -> Iterator[datetime]:
        start = datetime.fromtimestamp(after_s, UTC).astimezone(self._zone)
        yield from CronSim(ALIASES.get(self.expression, self.expression), start)

    def between(self, after_s: float, until_s: float) -> Iterator[float]:
        for planned in self.times(after_s):
            if planned > until_s:
                return
            yield planned

    def next_after(self, moment_s: float) -> float | None:
        """None where no such day ever comes."""
        return next(self.times(moment_s), None)


def parse_cron(expression: str, zone: str) -> Cron:
    """Raises InputError that names the field."""
    words = ALIASES.get(expression, expression).split()
    if len(expression) > MOST_CHARACTERS or len(words) != 5:
        raise InputError("cron", expression, f"must have {FIELDS}")
    check_zone(zone)
    try:
        found = Cron(expression, zone)
        never = found.next_after(0.0) is None
    except CronSimError as error:
        raise InputError("cron", expression, f"{error}; must have {FIELDS}") from None
    if never:
        raise InputError("cron", expression, "that day never comes")
    return found


def check_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, UnicodeError):
        allowed = "must be a zone of the IANA database, for instance Europe/Berlin or UTC"
        raise InputError("zone", name, allowed) from None
