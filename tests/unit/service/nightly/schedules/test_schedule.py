"""Planned times in a time zone: by hand where clocks change, and by property everywhere."""

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.nightly.schedule import parse_cron
from tools.errors import InputError

ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kathmandu",
    "Africa/Casablanca",
]
"""Lord Howe's clocks move by half an hour; Casablanca's go back for Ramadan."""
NIGHTLY = ["30 5 * * *", "0 0 * * *", "30 2 * * *", "30 1 * * *", "0 3 * * 1-5", "15 2,3 * * *", "45 1 1 * *"]
moments = st.datetimes(datetime(2024, 1, 1), datetime(2029, 12, 31), timezones=st.just(UTC)).map(  # noqa: DTZ001
    datetime.timestamp
)


def local(zone: str, *parts: int, fold: int = 0) -> float:
    return datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold).timestamp()  # type: ignore[misc,arg-type]


def first(expression: str, zone: str, after_s: float, count: int) -> list[str]:
    times = islice(parse_cron(expression, zone).times(after_s), count)
    return [datetime.fromtimestamp(one, ZoneInfo(zone)).isoformat() for one in times]


def test_a_night_keeps_its_local_time_when_summer_begins() -> None:
    assert first("30 5 * * *", "Europe/Berlin", local("Europe/Berlin", 2026, 3, 28), 3) == [
        "2026-03-28T05:30:00+01:00",
        "2026-03-29T05:30:00+02:00",
        "2026-03-30T05:30:00+02:00",
    ]


def test_a_time_that_does_not_exist_comes_when_the_gap_is_over() -> None:
    assert first("30 2 * * *", "Europe/Berlin", local("Europe/Berlin", 2026, 3, 28, 12), 2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
    ]


def test_a_time_that_comes_twice_is_taken_once() -> None:
    assert first("30 2 * * *", "Europe/Berlin", local("Europe/Berlin", 2026, 10, 24, 12), 2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


def test_from_inside_the_repeated_hour_nothing_comes_again() -> None:
    inside = local("Europe/Berlin", 2026, 10, 25, 2, 10, fold=1)
    assert first("30 2 * * *", "Europe/Berlin", inside, 1) == ["2026-10-26T02:30:00+01:00"]


def test_every_half_hour_comes_in_both_of_the_repeated_hours() -> None:
    start = local("America/New_York", 2026, 11, 1, 0, 50)
    times = list(islice(parse_cron("*/30 * * * *", "America/New_York").times(start), 5))
    assert {later - earlier for earlier, later in pairwise(times)} == {1800.0}


@given(st.sampled_from(NIGHTLY), st.sampled_from(ZONES), moments, st.floats(0, 60), st.floats(0, 60))
@settings(max_examples=60)
def test_the_same_nights_are_found_from_wherever_one_begins(
    expression: str, zone: str, start_s: float, days: float, more_days: float
) -> None:
    cron = parse_cron(expression, zone)
    middle_s, end_s = start_s + days * 86_400, start_s + (days + more_days) * 86_400
    whole = list(cron.between(start_s, end_s))
    assert whole == [*cron.between(start_s, middle_s), *cron.between(middle_s, end_s)]
    assert whole == sorted(set(whole))
    assert all(start_s < one <= end_s for one in whole)


@given(st.integers(0, 23), st.integers(0, 59), st.sampled_from(ZONES), moments)
@settings(max_examples=30)
def test_a_nightly_time_comes_once_on_every_date(hour: int, minute: int, zone: str, start_s: float) -> None:
    cron = parse_cron(f"{minute} {hour} * * *", zone)
    start = datetime.fromtimestamp(start_s, ZoneInfo(zone)).date()
    after_s = datetime.combine(start, datetime.min.time(), ZoneInfo(zone)).timestamp() - 0.5
    found = [datetime.fromtimestamp(one, ZoneInfo(zone)) for one in islice(cron.times(after_s), 380)]
    assert [one.date() for one in found] == [start + timedelta(days=day) for day in range(380)]
    late = {(one.hour * 60 + one.minute) - (hour * 60 + minute) for one in found}
    assert all(0 <= minutes <= 60 for minutes in late)  # later only where the time does not exist


@pytest.mark.parametrize(
    ("expression", "field"),
    [
        ("", "cron"),
        ("30 5 * *", "cron"),
        ("0 30 5 * * *", "cron"),
        ("61 5 * * *", "cron"),
        ("30 5 * * NOX", "cron"),
        ("@yearly-ish", "cron"),
        ("0 0 30 2 *", "cron"),
        ("* " * 200, "cron"),
        ("*/0 * * * *", "cron"),
    ],
)
def test_an_expression_that_is_wrong_is_refused(expression: str, field: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_cron(expression, "UTC")
    assert refused.value.field == field


@pytest.mark.parametrize(
    "zone", ["", "Mars/Olympus", "../etc/passwd", "America", "Europe/Berlin\0", "/etc/hosts"]
)
def test_a_zone_that_is_none_is_refused(zone: str) -> None:
    with pytest.raises(InputError, match="zone"):
        parse_cron("30 5 * * *", zone)


@given(st.text(max_size=30))
@settings(max_examples=100)
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        cron = parse_cron(text, "UTC")
    except InputError:
        return
    assert cron.next_after(0.0) is not None


def test_words_for_common_times() -> None:
    assert first("@daily", "UTC", 0.0, 1) == ["1970-01-02T00:00:00+00:00"]
    assert first("@weekly", "UTC", 0.0, 1) == ["1970-01-04T00:00:00+00:00"]
