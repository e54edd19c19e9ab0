"""Which nights run: in time, late, overlapping, blacked out, jittered, with a clock that jumps."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.nightly.dispatch import Planned, jitter, plan
from service.nightly.schedule import ScheduleSpec, parse_schedule
from tests.unit.service.nightly.schedules.builders import ID, body, spec, utc
from tools.errors import InputError

NIGHT = utc(2026, 11, 16, 5, 30)
DAY_S = 86_400.0


def due(
    given: ScheduleSpec, now_s: float, until_s: float = NIGHT - 3600, is_busy: bool = False
) -> list[Planned]:
    return plan(given, ID, until_s, now_s, is_busy).nights


def test_a_night_is_due_at_its_time_and_not_before() -> None:
    assert due(spec(), NIGHT - 1) == []
    assert due(spec(), NIGHT) == [Planned(NIGHT, "cron")]


def test_a_night_that_was_dealt_with_is_not_due_again() -> None:
    first = plan(spec(), ID, NIGHT - 3600, NIGHT + 3, False)
    assert plan(spec(), ID, first.considered_until, NIGHT + 8, False).nights == []


def test_a_late_night_is_caught_up_once_or_left_out_with_the_reason() -> None:
    now_s = NIGHT + 2 * 3600
    assert due(spec(), now_s) == [Planned(NIGHT, "caught_up")]
    (skipped,) = due(spec(missed="skip"), now_s)
    assert (skipped.at, skipped.skipped) == (NIGHT, "missed by 120 minutes: no worker could start it")


def test_of_several_missed_nights_only_the_last_is_run() -> None:
    found = due(spec(), NIGHT + 2 * DAY_S + 3600)
    assert [(one.at, bool(one.skipped)) for one in found] == [
        (NIGHT, True),
        (NIGHT + DAY_S, True),
        (NIGHT + 2 * DAY_S, False),
    ]


def test_a_schedule_that_slept_for_a_year_does_not_write_a_year_of_nights() -> None:
    found = due(spec(cron="*/15 * * * *"), NIGHT + 300 * DAY_S)
    assert len(found) == 11
    assert not found[-1].skipped


def test_a_night_whose_predecessor_runs_is_left_out_or_waits() -> None:
    (skipped,) = due(spec(), NIGHT, is_busy=True)
    assert skipped.skipped == "the run before was still under way"
    assert due(spec(overlap="wait"), NIGHT, is_busy=True) == [Planned(NIGHT, "cron")]


def test_a_blackout_keeps_a_night_from_running() -> None:
    once = {"start": "2026-11-16T00:00", "end": "2026-11-17T00:00", "reason": "maintenance"}
    (skipped,) = due(spec(blackouts=[once]), NIGHT)
    assert skipped.skipped == "blackout: 2026-11-16 00:00 to 2026-11-17 00:00 (maintenance)"
    assert not due(spec(blackouts=[once]), NIGHT + DAY_S)[-1].skipped


def test_a_missed_night_is_caught_up_though_the_one_after_it_is_in_a_blackout() -> None:
    weekly = {"from": "05:00", "to": "06:00", "days": ["tue"]}
    found = due(spec(blackouts=[weekly]), NIGHT + DAY_S + 3600)
    assert [(one.at, one.trigger) for one in found if not one.skipped] == [(NIGHT, "caught_up")]
    assert [one.skipped for one in found if one.skipped] == ["blackout: 05:00 to 06:00 on tue"]


def test_a_night_that_was_missed_before_a_blackout_is_run_when_that_is_over() -> None:
    given = spec(blackouts=[{"from": "06:00", "to": "18:00"}])
    held = plan(given, ID, NIGHT - 3600, NIGHT + 3600, False)
    assert held.nights == []
    assert due(given, NIGHT + 13 * 3600, held.considered_until) == [Planned(NIGHT, "caught_up")]


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
    assert (spec(blackouts=[blackout]).blackout_at(NIGHT) is not None) == covered


def test_a_blackout_is_read_in_the_schedules_zone() -> None:
    berlin = spec(zone="Europe/Berlin", blackouts=[{"from": "06:00", "to": "07:00"}])
    assert berlin.blackout_at(NIGHT) is not None  # 6:30 there


def test_jitter_belongs_to_the_night_and_puts_it_off() -> None:
    given = spec(jitter_s=3600)
    wait_s = jitter(ID, NIGHT, 3600)
    assert 0 < wait_s < 3600
    assert wait_s == jitter(ID, NIGHT, 3600)
    assert wait_s != jitter(ID, NIGHT + DAY_S, 3600)
    early = plan(given, ID, NIGHT - 3600, NIGHT + wait_s - 1, False)
    assert early.nights == []
    assert plan(given, ID, early.considered_until, NIGHT + wait_s, False).nights == [Planned(NIGHT, "cron")]


def test_jitter_does_not_make_a_night_late() -> None:
    given = spec(jitter_s=6 * 3600)
    now_s = NIGHT + jitter(ID, NIGHT, 6 * 3600) + 5
    assert [one.trigger for one in due(given, now_s)] == ["cron"]


def test_a_clock_that_is_set_back_starts_over_and_one_set_forward_loses_nothing() -> None:
    ahead = plan(spec(), ID, NIGHT - 3600, NIGHT + 400 * DAY_S, False)
    assert not ahead.nights[-1].skipped
    back = plan(spec(), ID, ahead.considered_until, NIGHT + 60, False)
    assert back == type(back)([], NIGHT + 60)
    assert plan(spec(), ID, back.considered_until, NIGHT + DAY_S, False).nights == [
        Planned(NIGHT + DAY_S, "cron")
    ]


@given(
    st.lists(st.floats(-3 * DAY_S, 5 * DAY_S), min_size=1, max_size=25),
    st.sampled_from([0.0, 1800.0]),
    st.sampled_from(["once", "skip"]),
)
@settings(max_examples=80)
def test_however_the_clock_jumps_no_night_is_run_twice(
    jumps: list[float], jitter_s: float, missed: str
) -> None:
    """As ticking does it: a planned time that has a run gets no other."""
    given = spec(jitter_s=jitter_s, missed=missed)
    now_s, until_s = NIGHT, NIGHT - 3600
    booked: dict[float, bool] = {}
    ran: list[float] = []
    for jump in jumps:
        now_s += jump
        found = plan(given, ID, until_s, now_s, False)
        until_s = found.considered_until
        for one in found.nights:
            assert one.at <= now_s
            if one.at not in booked:
                booked[one.at] = not one.skipped
                ran += [] if one.skipped else [one.at]
    assert len(ran) == len(set(ran))


@given(st.lists(st.floats(1, 2 * DAY_S), min_size=1, max_size=30))
@settings(max_examples=80)
def test_while_the_clock_runs_every_night_is_told_of_once(steps: list[float]) -> None:
    now_s, until_s = NIGHT - 60, NIGHT - 120
    told: list[float] = []
    for step in steps:
        now_s += step
        found = plan(spec(), ID, until_s, now_s, False)
        until_s = found.considered_until
        told += [one.at for one in found.nights]
    assert told == list(spec().clock.between(NIGHT - 120, now_s))


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ({"cron": "61 * * * *"}, "cron"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"mode": "tune"}, "mode"),
        ({"name": "a/b"}, "name"),
        ({"missed": "twice"}, "missed"),
        ({"blackouts": [{"from": "25:00", "to": "26:00"}]}, "blackouts[0].from"),
        ({"blackouts": [{"from": "05:00"}]}, "blackouts[0]"),
        ({"blackouts": [{"start": "2026-01-02T00:00", "end": "2026-01-01T00:00"}]}, "blackouts[0]"),
        ({"jitter_s": -1}, "jitter_s"),
        ({"workloads": [{"name": "j", "scenario": {}, "metrics": "relative/*"}]}, "workloads[0].metrics"),
        ({"workloads": [{"name": "j", "scenario": "f.json", "metrics": "/x"}]}, "workloads[0].scenario"),
        ({"workloads": [{"name": "j", "scenario": {}, "metrics": "/x"}]}, "workloads[0].scenario.model"),
    ],
)
def test_what_is_wrong_with_a_schedule_is_named(parts: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_schedule(body(**parts), may_tune=False)
    assert refused.value.field == field


def test_a_schedule_survives_being_kept() -> None:
    given = spec(
        blackouts=[{"from": "22:00", "to": "06:00", "days": ["sat"]}], jitter_s=60, zone="Asia/Tokyo"
    )
    kept = given.model_dump(mode="json", by_alias=True)
    assert parse_schedule(kept, may_tune=False) == given
