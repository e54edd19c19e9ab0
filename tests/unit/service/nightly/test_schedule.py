"""Planned times in a time zone, by hand where clocks change and by property everywhere; blackouts; faults."""

from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.schedules.calendar import parse_cron, parse_schedule
from tests.unit.service.nightly.builders import DUE, schedule, schedule_body
from tools.errors import InputError

# Lord Howe's clocks move by half an hour; Casablanca's go back for Ramadan.
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]
ZONES += ["Asia/Kathmandu"]
moments = st.floats(1.704e9, 1.893e9)  # 2024 to 2029


@pytest.mark.parametrize(
    ("expression", "zone", "after", "times"),
    [
        pytest.param(
            "30 5 * * *", "Europe/Berlin", "2026-03-28T00:00+01:00",
            ["2026-03-28T05:30+01:00", "2026-03-29T05:30+02:00", "2026-03-30T05:30+02:00"],
            id="a night keeps its local time when summer time begins",
        ),
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00+01:00",
            ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
            id="a time that does not exist comes when the gap is over",
        ),
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00+02:00",
            ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
            id="a time that comes twice is used once",
        ),
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-10-25T02:10+01:00", ["2026-10-26T02:30+01:00"],
            id="from inside the repeated hour nothing comes again",
        ),
        pytest.param("@daily", "UTC", "1970-01-01T00:00+00:00", ["1970-01-02T00:00+00:00"], id="daily"),
        pytest.param("@weekly", "UTC", "1970-01-01T00:00+00:00", ["1970-01-04T00:00+00:00"], id="weekly"),
    ],
)  # fmt: skip
def test_planned_times(expression: str, zone: str, after: str, times: list[str]) -> None:
    planned = islice(
        parse_cron(expression, zone).times(datetime.fromisoformat(after).timestamp()), len(times)
    )
    assert [datetime.fromtimestamp(s, ZoneInfo(zone)).isoformat(timespec="minutes") for s in planned] == times


def test_every_half_hour_comes_in_both_of_the_repeated_hours() -> None:
    start = datetime.fromisoformat("2026-11-01T00:50-04:00").timestamp()
    times = list(islice(parse_cron("*/30 * * * *", "America/New_York").times(start), 5))
    assert {later - earlier for earlier, later in pairwise(times)} == {1800.0}


@given(st.integers(0, 23), st.integers(0, 59), st.sampled_from(ZONES), moments)
@settings(max_examples=30)
def test_a_nightly_time_comes_once_on_every_date(hour: int, minute: int, zone: str, start_s: float) -> None:
    start = datetime.fromtimestamp(start_s, ZoneInfo(zone)).date()
    after_s = datetime.combine(start, datetime.min.time(), ZoneInfo(zone)).timestamp() - 0.5
    times = islice(parse_cron(f"{minute} {hour} * * *", zone).times(after_s), 380)
    planned = [datetime.fromtimestamp(time_s, ZoneInfo(zone)) for time_s in times]
    assert [time.date() for time in planned] == [start + timedelta(days=day) for day in range(380)]
    late = {(time.hour * 60 + time.minute) - (hour * 60 + minute) for time in planned}
    assert all(0 <= minutes <= 60 for minutes in late)  # later only if the time does not exist


@given(st.text(max_size=30))
@settings(max_examples=100)
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        cron = parse_cron(text, "UTC")
    except InputError:
        return
    assert cron.next_after(0.0) is not None


@pytest.mark.parametrize(
    ("blackout", "covered"),
    [
        ({"from": "05:00", "to": "06:00"}, True),
        ({"from": "05:30", "to": "05:31"}, True),
        ({"from": "05:00", "to": "05:30"}, False),
        ({"from": "22:00", "to": "06:00"}, True),
        ({"from": "22:00", "to": "06:00", "days": ["sun"]}, True),  # 16 November 2026 is a Monday
        ({"from": "22:00", "to": "06:00", "days": ["mon"]}, False),
        ({"from": "05:00", "to": "06:00", "days": ["mon"]}, True),
        ({"from": "05:00", "to": "06:00", "days": ["tue", "sat"]}, False),
        ({"start": "2026-11-16T06:00:00+01:00", "end": "2026-11-16T07:00:00+01:00"}, True),
        ({"start": "2026-11-16T06:00:00+00:00", "end": "2026-11-16T07:00:00+00:00"}, False),
    ],
)
def test_a_blackout_covers_what_it_says(blackout: dict[str, Any], covered: bool) -> None:
    assert (schedule(blackouts=[blackout]).blackout_at(DUE) is not None) == covered


def job(scenario: object, metrics: str = "/x") -> dict[str, Any]:
    return {"workloads": [{"name": "j", "scenario": scenario, "metrics": metrics}]}


CRONS = [
    "",
    "30 5 * *",
    "0 30 5 * * *",
    "61 5 * * *",
    "30 5 * * NOX",
    "@yearly-ish",
    "0 0 30 2 *",
    "* " * 200,
]
BAD_ZONES = ["", "Mars/Olympus", "../etc/passwd", "America", "Europe/Berlin\0", "/etc/hosts"]


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        *(({"cron": cron}, "cron") for cron in [*CRONS, "*/0 * * * *"]),
        *(({"zone": zone}, "zone") for zone in BAD_ZONES),
        ({"mode": "tune"}, "mode"),
        ({"name": "a/b"}, "name"),
        ({"missed": "twice"}, "missed"),
        ({"blackouts": [{"from": "25:00", "to": "26:00"}]}, "blackouts[0].from"),
        ({"blackouts": [{"from": "05:00"}]}, "blackouts[0]"),
        ({"blackouts": [{"start": "2026-01-02T00:00", "end": "2026-01-01T00:00"}]}, "blackouts[0]"),
        ({"jitter_s": -1}, "jitter_s"),
        (job({}, "relative/*"), "workloads[0].metrics"),
        (job("f.json"), "workloads[0].scenario"),
        (job({}), "workloads[0].scenario.model"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_named(parts: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_schedule(schedule_body(**parts), may_tune=False)
    assert refused.value.path == field
