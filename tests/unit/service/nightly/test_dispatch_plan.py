"""Which nights run: in time, late, overlapping, blacked out, jittered, with a clock that jumps."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.schedules.dispatch import Due, Planned, jitter, plan
from service.schedules.model import Trigger
from tests.unit.service.nightly.builders import DAY_S, DUE, schedule

ID = "0" * 32
ONCE = {"start": "2026-11-16T00:00", "end": "2026-11-17T00:00", "reason": "maintenance"}
IN_BLACKOUT = "blackout: 2026-11-16 00:00 to 2026-11-17 00:00 (maintenance)"
TUESDAYS = {"from": "05:00", "to": "06:00", "days": ["tue"]}
SUPERSEDED = "superseded by the run of a later night"


def due(
    now_s: float,
    until_s: float = DUE - 3600,
    is_busy: bool = False,
    **parts: Any,  # noqa: ANN401 - of a schedule
) -> Due:
    return plan(schedule(**parts), ID, until_s, now_s, is_busy)


# Before its time, in time, late (caught up or skipped), several missed, the night before still running
# (skipped or queued), a blackout, a blackout of a later night.
@pytest.mark.parametrize(
    ("parts", "late_s", "nights"),
    [
        ({}, -1, []),
        ({}, 0, [(0, "cron", None)]),
        ({}, 7200, [(0, "caught_up", None)]),
        ({"missed": "skip"}, 7200, [(0, "caught_up", "missed by 120 minutes: no worker could start it")]),
        ({}, 2 * DAY_S, [(0, "cron", SUPERSEDED), (1, "cron", SUPERSEDED), (2, "cron", None)]),
        ({"is_busy": True}, 0, [(0, "cron", "the run before was still under way")]),
        ({"is_busy": True, "overlap": "wait"}, 0, [(0, "cron", None)]),
        ({"blackouts": [ONCE]}, 0, [(0, "cron", IN_BLACKOUT)]),
        ({"blackouts": [ONCE]}, DAY_S, [(0, "cron", IN_BLACKOUT), (1, "cron", None)]),
        (
            {"blackouts": [TUESDAYS]},
            DAY_S + 3600,
            [(0, "caught_up", None), (1, "cron", "blackout: 05:00 to 06:00 on tue")],
        ),
    ],
)
def test_a_night_runs_or_is_skipped_with_the_reason(
    parts: dict[str, Any], late_s: float, nights: list[tuple[int, Trigger, str | None]]
) -> None:
    expected = [Planned(DUE + day * DAY_S, trigger, skipped) for day, trigger, skipped in nights]
    assert due(DUE + late_s, **parts).nights == expected


def test_a_night_that_was_missed_before_a_blackout_is_run_when_that_is_over() -> None:
    daytime = [{"from": "06:00", "to": "18:00"}]
    during = due(DUE + 3600, blackouts=daytime)
    assert during.nights == []
    after = due(DUE + 13 * 3600, during.considered_until, blackouts=daytime)
    assert after.nights == [Planned(DUE, "caught_up")]


def test_jitter_belongs_to_the_night_and_delays_it_without_making_it_late() -> None:
    max_s = 6 * 3600.0
    wait_s = jitter(ID, DUE, max_s)
    assert 0 < wait_s < max_s
    assert wait_s == jitter(ID, DUE, max_s) != jitter(ID, DUE + DAY_S, max_s)
    early = due(DUE + wait_s - 1, jitter_s=max_s)
    assert early.nights == []
    assert due(DUE + wait_s + 5, early.considered_until, jitter_s=max_s).nights == [Planned(DUE, "cron")]


def test_a_clock_that_is_set_back_starts_over_and_one_set_forward_loses_nothing() -> None:
    ahead = due(DUE + 400 * DAY_S)
    assert not ahead.nights[-1].skipped
    back = due(DUE + 60, ahead.considered_until)
    assert back == Due([], DUE + 60)
    assert due(DUE + DAY_S, back.considered_until).nights == [Planned(DUE + DAY_S, "cron")]


@given(
    st.lists(st.floats(-3 * DAY_S, 5 * DAY_S), min_size=1, max_size=25),
    st.sampled_from([0.0, 1800.0]),
    st.sampled_from(["once", "skip"]),
)
@settings(max_examples=80)
def test_however_the_clock_jumps_no_night_is_planned_early_or_twice(
    jumps: list[float], jitter_s: float, missed: str
) -> None:
    """Across plans, a planned time that has a run gets no other: test_dispatch_tick.py."""
    now_s, until_s = DUE, DUE - 3600
    for jump in jumps:
        now_s += jump
        planned = due(now_s, until_s, jitter_s=jitter_s, missed=missed)
        until_s = planned.considered_until
        times = [night.at for night in planned.nights]
        assert times == sorted(set(times))
        assert all(time_s <= now_s for time_s in times)
